"""From the products down: each asks its only user."""

import torch


def fuse(module):
    for product in [n for n in module.graph.nodes if n.target is torch.mul]:
        users = list(product.users)
        if len(users) == 1 and users[0].target is torch.add:
            try_to_join(module.graph, product, users[0])
            if not product.users:
                module.graph.erase_node(product)
    module.recompile()
    return module


def try_to_join(graph, product, total):
    x, a = product.args
    rest = [arg for arg in total.args if arg is not product]
    if total.kwargs or len(rest) != 1:
        return
    b = rest[0]
    if any(isinstance(value, (int, float)) for value in (x, a, b)):
        return
    if not (x.meta["val"].dtype is a.meta["val"].dtype is b.meta["val"].dtype):
        return
    order = list(graph.nodes)
    for node in order[order.index(product) : order.index(total)]:
        if node.op == "call_method" and node.target.endswith("_") and (node.args[0] is x or node.args[0] is a):
            return
    total.target = torch.addcmul
    total.args = (b, x, a)
