"""Published SigLIP and SigLIP 2 weights from a file, under the names of our towers.

A file is what `transformers` saves: `model.safetensors`, or all its parts (`model-00001-of-00002.safetensors`), or what
torch.load reads. Of its names those of the vision tower count:

    vision_model.embeddings.patch_embedding.weight, .bias        embed
    vision_model.embeddings.position_embedding.weight            places
    vision_model.encoder.layers.7.layer_norm1.*                  blocks.7.before_attention.*
    vision_model.encoder.layers.7.self_attn.{q,k,v}_proj.*       blocks.7.attention.{q,k,v}.*
    vision_model.encoder.layers.7.self_attn.out_proj.*           blocks.7.attention.out.*
    vision_model.encoder.layers.7.layer_norm2.*                  blocks.7.before_mlp.*
    vision_model.encoder.layers.7.mlp.fc1.*, fc2.*               blocks.7.up.*, down.*
    vision_model.post_layernorm.*                                norm.*
    vision_model.head.*                                          left out

The head, in which one learnt query attends to all patches, is left out: our towers take the mean over real patches of
what comes before it, so their results are not the published embeddings. Two more things belong to whoever prepares the
images. A patch is a row of numbers in the order of the file's patch embedding: colour, row, column where that is a
convolution (its weight has four dimensions and is flattened here), row, column, colour where it is a linear layer. And
positions are used as they are, one for each patch of a square image; for images of another shape the published model
interpolates them, and ours does not.

The published LayerNorms add 1e-6 to the variance, torch's own 1e-5: `load` sets that too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from course_lib.models.vision import Sizes

__all__ = ["EPS", "load", "read", "renamed", "sizes_of"]

EPS = 1e-6
TOWER = "vision_model."
NAMES = {
    "embeddings.patch_embedding": "embed",
    "embeddings.position_embedding.weight": "places",
    "post_layernorm": "norm",
    "layer_norm1": "before_attention",
    "layer_norm2": "before_mlp",
    **{f"self_attn.{part}_proj": f"attention.{part}" for part in ("q", "k", "v", "out")},
    "mlp.fc1": "up",
    "mlp.fc2": "down",
}
# As safetensors calls them; the file is little-endian, and so is every machine that the course runs on.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read(paths: Path | str | Iterable[Path | str]) -> dict[str, torch.Tensor]:
    """The tensors of the vision tower in one file or in all parts of one, as they are named there."""
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    found: dict[str, torch.Tensor] = {}
    for path in map(Path, paths):
        found |= _safetensors(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    found = {name: tensor for name, tensor in found.items() if name.startswith(TOWER)}
    if not found:
        raise ValueError(f"no tensor of {', '.join(map(str, paths))} is called {TOWER}...: is it a SigLIP model?")
    return found


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    """8 bytes: the length of a header; the header, JSON: type, shape and place of each tensor; then the tensors."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start, found = file.tell(), {}
        for name, entry in header.items():
            if name.startswith(TOWER):
                first, end = entry["data_offsets"]
                file.seek(start + first)
                flat = torch.frombuffer(bytearray(file.read(end - first)), dtype=DTYPES[entry["dtype"]])
                found[name] = flat.view(entry["shape"])
    return found


def renamed(published: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By the names of the naive tower, and so in the form that every tower loads."""
    found = {}
    for name, tensor in published.items():
        place = name.removeprefix(TOWER)
        if place.startswith("head."):
            continue
        layer = re.match(r"encoder\.layers\.(\d+)\.", place)
        rest = place[layer.end() :] if layer else place
        theirs = next((start for start in NAMES if rest == start or rest.startswith(f"{start}.")), None)
        if theirs is None:
            raise ValueError(f"{name} has no place in our towers: is it a SigLIP model?")
        before = f"blocks.{layer[1]}." if layer else ""
        ours = before + NAMES[theirs] + rest.removeprefix(theirs)
        found[ours] = tensor.flatten(1) if ours == "embed.weight" else tensor
    return found


def sizes_of(named: dict[str, torch.Tensor], heads: int) -> Sizes:
    """Of renamed weights. How many heads share the width is in no weight: 16 in So400m, 12 in Base."""
    patches, width = named["places"].shape
    layers = 1 + max(int(name.split(".")[1]) for name in named if name.startswith("blocks."))
    return Sizes(named["embed.weight"].shape[1], patches, width, len(named["blocks.0.up.bias"]), heads, layers)


def load(tower: nn.Module, paths: Path | str | Iterable[Path | str]) -> None:
    """Into any of the towers, in the type that it has. Sizes that differ, and names too many or missing, raise."""
    tower.load_state_dict(renamed(read(paths)))
    for module in tower.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = EPS
