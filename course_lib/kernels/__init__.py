"""Reference Triton kernels, one idea a file. Each file: the maths and the bytes, plain torch, kernel, launcher."""
