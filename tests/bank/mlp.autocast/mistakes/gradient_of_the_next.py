"""The gradient comes in the type of the next result."""

KILLED_BY = "the toy of the report"

LOW = ("linear", "matmul")
FP32 = {
    "cpu": ("mse_loss", "cross_entropy"),
    "cuda": ("layer_norm", "softmax", "exp", "pow", "sum", "mse_loss", "cross_entropy"),
}


def autocast(device, dtype, x, layers):
    types, answer, now = {"x": x}, [], "x"
    for number, layer in enumerate(layers):
        op, kind = layer["op"], types[now]
        if "from" in layer and types[layer["from"]] != kind:
            kind = "fp32"
        if op == "to":
            kind = layer["type"]
        elif layer.get("off"):
            pass
        elif op in LOW:
            kind = dtype
        elif op in FP32[device]:
            kind = "fp32"
        types[number], now = kind, number
        answer.append([kind, kind, layer.get("weight")])
    for this, following in zip(answer, answer[1:]):
        this[1] = following[0]
    return answer
