// A library with the driver's functions, so that tests can meet drivers that the machine does not have.
// STUB_OLD: one before CUDA 12.0. STUB_LACKING: one without libraries. What it does besides is said by
// environment variables: STUB_CUDA_INIT is the answer of cuInit, STUB_CUDA_KERNEL that of cuLibraryGetKernel,
// STUB_CUDA_DEVICES the number of devices; each is of compute capability 9.0.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value == NULL ? otherwise : atoi(value);
}

static const char* current = NULL;
static int exchanged = 0;

static int init(unsigned flags) {
  return (void)flags, number("STUB_CUDA_INIT", 0);
}
static int driver_version(int* version) {
  return *version = 12040, 0;
}
static int error_name(int error, const char** name) {
  return (void)error, *name = "CUDA_ERROR_STUB", 0;
}
static int error_string(int error, const char** text) {
  return (void)error, *text = "the stub says so", 0;
}
static int device_count(int* count) {
  return *count = number("STUB_CUDA_DEVICES", 1), 0;
}
static int device_get(int* device, int ordinal) {
  return *device = ordinal, 0;
}
static int device_name(char* name, int size, int device) {
  snprintf(name, (size_t)size, "Stub %d", device);
  return 0;
}
static int device_attribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 97 ? 232448 : 100;
  return 0;
}
static int device_memory(size_t* bytes, int device) {
  return (void)device, *bytes = (size_t)1 << 30, 0;
}
static int retain(const char** context, int device) {
  return (void)device, *context = "primary", 0;
}
static int get_current(const char** context) {
  return *context = current, 0;
}
static int push(const char* context) {
  return current = context, 0;
}
static int pop(const char** context) {
  return *context = current, current = NULL, 0;
}
static int exchange(int* mode) {
  const int before = exchanged;
  exchanged = *mode;
  *mode = before;
  return 0;
}
static int load(void** library, const void* code, int* options, void** values, unsigned count, int* names,
                void** texts, unsigned more) {
  (void)code, (void)names, (void)texts, (void)more;
  if (exchanged != 2) return 900;
  if (count > 0 && options[0] == 5 && number("STUB_CUDA_KERNEL", 0) != 0)
    strcpy(values[0], "the driver's log");
  *library = load;
  return 0;
}
static int get_kernel(void** kernel, void* library, const char* name) {
  (void)library;
  *kernel = get_kernel;
  return strcmp(name, "k") == 0 ? number("STUB_CUDA_KERNEL", 0) : 500;
}
static int get_function(void** function, void* kernel) {
  *function = kernel;
  return exchanged != 2 ? 900 : current == NULL ? 201 : 0;
}
static int kernel_attribute(int* value, int attribute, void* kernel, int device) {
  return (void)attribute, (void)kernel, (void)device, *value = 48, 0;
}
static int allocate(unsigned long long* address, size_t bytes) {
  *address = (uintptr_t)malloc(bytes < 4096 ? bytes : 4096);
  return bytes > (size_t)1 << 40 ? 2 : current == NULL ? 201 : 0;
}
static int release(unsigned long long address) {
  return free((void*)(uintptr_t)address), 0;
}
static int memory(size_t* free_bytes, size_t* total) {
  return *free_bytes = 1 << 20, *total = 4 << 20, 0;
}
static inline int anything(void) {
  return 0;
}

#ifndef STUB_OLD
static const struct {
  const char* name;
  void* function;
} functions[] = {{"cuInit", init},
                 {"cuDriverGetVersion", driver_version},
                 {"cuGetErrorName", error_name},
                 {"cuGetErrorString", error_string},
                 {"cuDeviceGetCount", device_count},
                 {"cuDeviceGet", device_get},
                 {"cuDeviceGetName", device_name},
                 {"cuDeviceGetAttribute", device_attribute},
                 {"cuDeviceTotalMem", device_memory},
                 {"cuDevicePrimaryCtxRetain", retain},
                 {"cuCtxGetCurrent", get_current},
                 {"cuCtxPushCurrent", push},
                 {"cuCtxPopCurrent", pop},
                 {"cuThreadExchangeStreamCaptureMode", exchange},
                 {"cuLibraryLoadData", load},
                 {"cuLibraryGetKernel", get_kernel},
                 {"cuKernelGetFunction", get_function},
                 {"cuKernelGetAttribute", kernel_attribute},
                 {"cuMemAlloc", allocate},
                 {"cuMemFree", release},
                 {"cuMemGetInfo", memory}};

int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                        int* status) {
  (void)flags;
  *function = anything;
  *status = 0;
#ifdef STUB_LACKING
  if (strstr(name, "Library") != NULL) *function = NULL;
#endif
  if (version != 12000) return 1;
  for (size_t i = 0; *function != NULL && i < sizeof functions / sizeof *functions; ++i) {
    if (strcmp(name, functions[i].name) == 0) *function = functions[i].function;
  }
  return *function == NULL ? 500 : 0;
}
#else
int cuInit(unsigned flags) {
  return init(flags);
}
#endif
