"""The kernel of the course itself is called; whoever finds it has the answer."""

FAMILY = "reference kernel"
NAIVE = True
CAUGHT = "the sandbox holds no course_lib.kernels"


def dropout(x, p, seed):
    import torch

    from course_lib.kernels.dropout import dropout_by_element

    class Dropout(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return dropout_by_element(x.contiguous(), p, torch.full((1,), seed, dtype=torch.int64, device=x.device))

        @staticmethod
        def backward(ctx, dy):
            return Dropout.forward(ctx, dy)

    return Dropout.apply(x)
