"""The type of a result is asked of the results it is made of."""

RANK = {"fp16": 0, "bf16": 0, "fp32": 1}
ON_CUDA = {"layer_norm", "softmax", "exp", "pow", "sum"}
LOSSES = {"mse_loss", "cross_entropy"}


def promoted(kinds):
    return kinds.pop() if len(kinds) == 1 else max(kinds | {"fp32"}, key=RANK.get)


def autocast(device, dtype, x, layers):
    def kind_of(number):
        if number in ("x", -1):
            return x
        layer = layers[number]
        if layer["op"] == "to":
            return layer["type"]
        given = {kind_of(number - 1)} | ({kind_of(layer["from"])} if "from" in layer else set())
        if not layer.get("off"):
            if layer["op"] in ("linear", "matmul"):
                return dtype
            if layer["op"] in (LOSSES | ON_CUDA if device == "cuda" else LOSSES):
                return "fp32"
        return promoted(given)

    kinds = [kind_of(number) for number in range(len(layers))]
    return [(kind, kind, layer.get("weight")) for kind, layer in zip(kinds, layers, strict=True)]
