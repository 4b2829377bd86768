"""A checkpoint around each block that holds what products and attention give, but for the two of the MLP."""

import functools

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from course_lib.models.siglip import strong

PRODUCT = torch.ops.aten.addmm.default
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class FrugalTower(strong.Tower):
    def forward(self, patches, lengths):
        n = patches.shape[1]
        real = torch.arange(n, device=lengths.device) < lengths[:, None]
        x = self.embedded(patches, real)
        mask = torch.zeros_like(real, dtype=x.dtype).masked_fill(~real, float("-inf"))[:, None, None]
        contexts = functools.partial(create_selective_checkpoint_contexts, self.policy)
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False, context_fn=contexts)
        return self.pooled(self.norm(x), real)

    def policy(self, ctx, operator, *args, **kwargs):
        held = operator == ATTENTION or (operator == PRODUCT and self.sizes.mlp not in args[2].shape)
        return CheckpointPolicy.MUST_SAVE if held else CheckpointPolicy.PREFER_RECOMPUTE

    @staticmethod
    def planned(sizes, images, bytes_a_number):
        row = images * bytes_a_number * sizes.patches
        each = {"x": sizes.width, "q, k, v": 3 * sizes.width, "attention": sizes.width, "lse": sizes.heads}
        plan = {name: row * numbers * sizes.layers for name, numbers in each.items()}
        plan["what out gives"] = row * sizes.width * sizes.layers
        return plan | {"patches": row * sizes.patch, "last x": row * (sizes.width + 2), "masks": 2 * row}
