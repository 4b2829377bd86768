"""All is done, and nothing returned."""

import torch
from torch import fx

KILLED_BY = "the product on the left"


def fuse(module):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.add or node.kwargs:
            continue
        for product, b in (node.args, node.args[::-1]):
            if is_product(product) and joinable(product, b, node):
                x, a = product.args
                with graph.inserting_before(node):
                    joined = graph.call_function(torch.addcmul, (b, x, a))
                joined.meta = dict(node.meta)
                node.replace_all_uses_with(joined)
                graph.erase_node(node)
                graph.erase_node(product)
                break
    graph.lint()
    module.recompile()


def is_product(node):
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target is torch.mul


def joinable(product, b, total):
    nodes = [*product.args, b]
    if not all(isinstance(node, fx.Node) for node in nodes):
        return False
    if len({node.meta["val"].dtype for node in nodes}) > 1:
        return False
    if len(product.users) > 1 or b is product:
        return False
    node = product.next
    while node is not total:
        if node.op == "call_method" and node.args[0] in product.args:
            return False
        node = node.next
    return True
