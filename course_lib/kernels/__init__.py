"""Reference Triton kernels, an operation a file or a package: the maths and the bytes, plain torch, kernel, launcher.

An operation imports nothing from another operation. What several of them use is the ground floor:

    hardware        what the device is, and whether the hand-scheduled kernels in Gluon can run on it
    fitting         which blocks a device gets that the tables were not measured on
    strides         the strides of a tensor as one tuple, in units that show the compiler wide accesses
    columns         a row of any width in two blocks of columns
    descriptors     matrices as the copy engine sees them
    launching       launches that were made before, without Triton's host path
    product_tiles   the tiles of a matrix product: measured tables, and the order in which tiles are walked
    product_parts   a product of few tiles: low tiles for few rows, and sums that several programs share
    product_wide    tiles whose width is no power of two, where others fill the device badly
    product_copies  copies whose rows start at multiples of 16 bytes
    product_routes  which of these ways a product is made
    rings           the barriers where a warp that fetches and warps that compute meet (Gluon)
    philox          random numbers that are a function of a seed and a place
    angles          the angles of a rotation

`mlp` is composed of public functions of other operations, and `timed` of launchers: what a student's speed is compared
with.
"""
