/* In place of libcuda.so.1, without a GPU: every launch writes its grid and the bytes of its parameters into a buffer.

   How many bytes a parameter has is told by `paper_sizes` for each function; launches of others are not written. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>

#define CALL(name, ...) CUresult name(__VA_ARGS__)
#define MOST 256 /* functions, and parameters of one: a descriptor is 5 to 9 of them */

static char context, text[1 << 20];
static long end;
static struct {
  CUfunction function;
  int count, bytes[MOST];
} known[MOST];
static int functions;

void paper_sizes(CUfunction function, int count, const int *bytes) {
  if (functions == MOST || count > MOST)
    abort();
  known[functions].function = function;
  known[functions].count = count;
  memcpy(known[functions++].bytes, bytes, count * sizeof(int));
}

long paper_take(char *to) {
  long length = end;
  memcpy(to, text, length);
  end = 0;
  return length;
}

static void write_down(const void *from, size_t bytes) {
  memcpy(text + end, from, bytes);
  end += bytes;
}

CALL(cuLaunchKernelEx, const CUlaunchConfig *how, CUfunction function, void **params, void **extra) {
  for (int i = 0; i < functions; i++)
    if (known[i].function == function) {
      unsigned shape[] = {how->gridDimX,  how->gridDimY,       how->gridDimZ,
                          how->blockDimX, how->sharedMemBytes, how->numAttrs};
      write_down(shape, sizeof shape);
      write_down(&function, sizeof function);
      write_down(&how->hStream, sizeof how->hStream);
      for (int j = 0; j < known[i].count; j++)
        write_down(params[j], known[i].bytes[j]);
    }
  return CUDA_SUCCESS;
}

CALL(cuTensorMapEncodeTiled, CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
     const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
     CUtensorMapFloatOOBfill fill) {
  cuuint64_t *words = (cuuint64_t *)map;
  memset(map, 0, sizeof *map);
  words[0] = (cuuint64_t)address;
  words[1] = type + 100 * rank + 10000 * swizzle + 1000000 * fill;
  for (unsigned i = 0; i < rank; i++) {
    words[2 + i] = sizes[i] << 16 | box[i];
    words[7 + i] = i + 1 < rank ? strides[i] : 0;
  }
  return CUDA_SUCCESS;
}

/* What Triton asks besides, answered as an H200 would as far as anybody looks. */
CALL(cuGetErrorString, CUresult error, const char **words) { *words = "on paper"; return CUDA_SUCCESS; }
CALL(cuCtxGetCurrent, CUcontext *to) { *to = (CUcontext)&context; return CUDA_SUCCESS; }
CALL(cuCtxSetCurrent, CUcontext one) { return CUDA_SUCCESS; }
CALL(cuDeviceGet, CUdevice *to, int number) { *to = number; return CUDA_SUCCESS; }
CALL(cuDevicePrimaryCtxRetain, CUcontext *to, CUdevice one) { *to = (CUcontext)&context; return CUDA_SUCCESS; }
CALL(cuDeviceGetAttribute, int *to, CUdevice_attribute what, CUdevice one) { *to = 232448; return CUDA_SUCCESS; }
CALL(cuModuleLoadData, CUmodule *to, const void *image) { *to = (CUmodule)&context; return CUDA_SUCCESS; }
CALL(cuModuleGetFunction, CUfunction *to, CUmodule from, const char *name) {
  *to = (CUfunction)strdup(name);
  return CUDA_SUCCESS;
}
CALL(cuFuncGetAttribute, int *to, CUfunction_attribute what, CUfunction one) {
  *to = what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CALL(cuFuncSetAttribute, CUfunction one, CUfunction_attribute what, int value) { return CUDA_SUCCESS; }
CALL(cuFuncSetCacheConfig, CUfunction one, CUfunc_cache how) { return CUDA_SUCCESS; }
CALL(cuPointerGetAttribute, void *to, CUpointer_attribute what, CUdeviceptr one) {
  *(CUdeviceptr *)to = one;
  return CUDA_SUCCESS;
}
CALL(cuDriverGetVersion, int *to) { *to = 13020; return CUDA_SUCCESS; }
CALL(cuCtxGetLimit, size_t *to, CUlimit what) { *to = 0; return CUDA_SUCCESS; }
CALL(cuCtxSetLimit, CUlimit what, size_t value) { return CUDA_SUCCESS; }
CALL(cuOccupancyMaxActiveClusters, int *to, CUfunction one, const CUlaunchConfig *how) { *to = 1; return CUDA_SUCCESS; }
