// A library with the driver's functions, so that tests can meet drivers that the machine does not have.
// STUB_OLD: one before CUDA 12.0. STUB_LACKING: one without libraries. What it does besides is said by
// environment variables: STUB_CUDA_INIT is the answer of cuInit, STUB_CUDA_KERNEL that of cuLibraryGetKernel,
// STUB_CUDA_DEVICES the number of devices; each is of compute capability 9.0, or STUB_CUDA_MAJOR's. With
// STUB_CUDA_LAUNCH launches answer that, with STUB_CUDA_ANY_KERNEL a library has every kernel that it is
// asked for and not "k" alone. Memory is told apart by who allocated it, contexts and streams by their
// device, and calls are counted: stub_calls(). Nothing is ever computed.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value == NULL ? otherwise : atoi(value);
}

enum { max_devices = 8, max_blocks = 4096, max_names = 128 };

struct context {
  int device;
};
struct stream {
  int device, capturing;
};
static struct context contexts[max_devices];
static _Thread_local struct context* stack[16];
static _Thread_local int depth = 0, exchanged = 0;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
  const char* name;
  int device, calls;
} counts[max_names];
static struct {
  char *begin, *end;
  int device;
} blocks[max_blocks];

static int device_of_thread(void) {
  return depth > 0 ? stack[depth - 1]->device : -1;
}

static void count_on(const char* name, int device) {
  pthread_mutex_lock(&mutex);
  int i = 0;
  while (i < max_names - 1 && counts[i].name != NULL &&
         (strcmp(counts[i].name, name) != 0 || counts[i].device != device)) {
    ++i;
  }
  counts[i].name = name;
  counts[i].device = device;
  ++counts[i].calls;
  pthread_mutex_unlock(&mutex);
}
static void count(const char* name) {
  count_on(name, device_of_thread());
}

// Calls of that name (null: of any) since the last stub_forget(), made for that device (-1: any).
int stub_calls(const char* name, int device) {
  int calls = 0;
  for (int i = 0; i < max_names && counts[i].name != NULL; ++i) {
    if ((name == NULL || strcmp(counts[i].name, name) == 0) && (device == -1 || counts[i].device == device)) {
      calls += counts[i].calls;
    }
  }
  return calls;
}
// The i-th name that was counted; null behind the last.
const char* stub_name(int i) {
  return i < max_names ? counts[i].name : NULL;
}
void stub_forget(void) {
  memset(counts, 0, sizeof counts);
}

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
  *value = attribute == 75   ? number("STUB_CUDA_MAJOR", 9)
           : attribute == 76 ? 0
           : attribute == 97 ? 232448
                             : 100;
  return 0;
}
static int device_memory(size_t* bytes, int device) {
  return (void)device, *bytes = (size_t)1 << 30, 0;
}
static int retain(struct context** context, int device) {
  contexts[device].device = device;
  return *context = &contexts[device], 0;
}
static int get_current(struct context** context) {
  count("cuCtxGetCurrent");
  return *context = depth > 0 ? stack[depth - 1] : NULL, 0;
}
static int get_device(int* device) {
  count("cuCtxGetDevice");
  if (depth == 0) return 201;
  return *device = stack[depth - 1]->device, 0;
}
static int push(struct context* context) {
  count("cuCtxPushCurrent");
  return stack[depth++] = context, 0;
}
static int pop(struct context** context) {
  count("cuCtxPopCurrent");
  if (depth == 0) return 201;
  return *context = stack[--depth], 0;
}
static int exchange(int* mode) {
  count("cuThreadExchangeStreamCaptureMode");
  const int before = exchanged;
  exchanged = *mode;
  *mode = before;
  return 0;
}
static int load(void** library, const void* code, int* options, void** values, unsigned size, int* names,
                void** texts, unsigned more) {
  (void)code, (void)names, (void)texts, (void)more;
  count("cuLibraryLoadData");
  if (exchanged != 2) return 900;
  if (size > 0 && options[0] == 5 && number("STUB_CUDA_KERNEL", 0) != 0)
    strcpy(values[0], "the driver's log");
  *library = load;
  return 0;
}
static int get_kernel(void** kernel, void* library, const char* name) {
  (void)library;
  *kernel = strdup(name);
  if (strcmp(name, "k") != 0 && number("STUB_CUDA_ANY_KERNEL", 0) == 0) return 500;
  return number("STUB_CUDA_KERNEL", 0);
}
static int get_function(void** function, void* kernel) {
  count("cuKernelGetFunction");
  *function = kernel;
  return exchanged != 2 ? 900 : depth == 0 ? 201 : 0;
}
static int kernel_attribute(int* value, int attribute, void* kernel, int device) {
  return (void)attribute, (void)kernel, (void)device, *value = 48, 0;
}
static int kernel_set_attribute(int attribute, int value, void* kernel, int device) {
  (void)attribute, (void)value, (void)kernel;
  return count_on("cuKernelSetAttribute", device), 0;
}

// Of a tensor no more is used than its address.
static int allocate(unsigned long long* address, size_t bytes) {
  count("cuMemAlloc");
  if (bytes > (size_t)1 << 40) return 2;
  if (depth == 0) return 201;
  static char* next = (char*)(uintptr_t)0x7f0000000000;
  pthread_mutex_lock(&mutex);
  int i = 0;
  while (i < max_blocks - 1 && blocks[i].begin != NULL) ++i;
  blocks[i].begin = next;
  blocks[i].end = next + bytes;
  blocks[i].device = device_of_thread();
  next += (bytes + 255) / 256 * 256;
  *address = (uintptr_t)blocks[i].begin;
  pthread_mutex_unlock(&mutex);
  return 0;
}
static int release(unsigned long long address) {
  count("cuMemFree");
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < max_blocks; ++i) {
    if (blocks[i].begin == (char*)(uintptr_t)address) blocks[i].begin = NULL;
  }
  pthread_mutex_unlock(&mutex);
  return 0;
}
static int memory(size_t* free_bytes, size_t* total) {
  return *free_bytes = 1 << 20, *total = 4 << 20, 0;
}
static int pointer(void* value, int attribute, unsigned long long address) {
  count("cuPointerGetAttribute");
  const char* at = (const char*)(uintptr_t)address;
  for (int i = 0; i < max_blocks; ++i) {
    if (blocks[i].begin == NULL || at < blocks[i].begin || at >= blocks[i].end) continue;
    *(int*)value = attribute == 2 ? 2 : blocks[i].device;  // memory type "device"; or the ordinal
    return 0;
  }
  return 1;
}

static int stream_create(struct stream** made, unsigned flags) {
  (void)flags;
  count("cuStreamCreate");
  if (depth == 0) return 201;
  *made = calloc(1, sizeof **made);
  (*made)->device = device_of_thread();
  return 0;
}
static int stream_destroy(struct stream* stream) {
  count("cuStreamDestroy");
  return free(stream), 0;
}
static int is_capturing(struct stream* stream, int* status) {
  count("cuStreamIsCapturing");
  return *status = stream != NULL && stream->capturing, 0;
}
static int begin_capture(struct stream* stream, int mode) {
  (void)mode;
  count("cuStreamBeginCapture");
  return stream->capturing = 1, 0;
}
static int end_capture(struct stream* stream, void** graph) {
  count("cuStreamEndCapture");
  stream->capturing = 0;
  return *graph = end_capture, 0;
}
static int instantiate(void** replay, void* graph, unsigned long long flags) {
  (void)graph, (void)flags;
  count("cuGraphInstantiateWithFlags");
  if (number("STUB_CUDA_INSTANTIATE", 0) != 0) return number("STUB_CUDA_INSTANTIATE", 0);
  return *replay = malloc(1), 0;
}
static int destroy_replay(void* replay) {
  count("cuGraphExecDestroy");
  return free(replay), 0;
}

// Work belongs to the stream's device; that of the default stream to the thread's.
static int work(const char* name, const struct stream* stream) {
  if (stream == NULL && depth == 0) return 201;
  count_on(stream != NULL && stream->capturing ? "captured" : name,
           stream != NULL ? stream->device : device_of_thread());
  return 0;
}
static int launch(void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty,
                  unsigned tz, unsigned shared, const struct stream* stream, void** arguments, void** extra) {
  (void)kernel, (void)x, (void)y, (void)z, (void)threads, (void)ty, (void)tz, (void)shared, (void)arguments;
  (void)extra;
  const int result = work("launch", stream);
  return result != 0 ? result : number("STUB_CUDA_LAUNCH", 0);
}
struct launch_config {
  unsigned grid[3], block[3], shared;
  struct stream* stream;
};
static int launch_ex(const struct launch_config* config, void* kernel, void** arguments, void** extra) {
  (void)kernel, (void)arguments, (void)extra;
  const int result = work("launch", config->stream);
  return result != 0 ? result : number("STUB_CUDA_LAUNCH", 0);
}
static int launch_graph(void* replay, const struct stream* stream) {
  (void)replay;
  return work("cuGraphLaunch", stream);
}
static int set32(unsigned long long address, unsigned value, size_t size, const struct stream* stream) {
  (void)address, (void)value, (void)size;
  return work("memset", stream);
}
static int set8(unsigned long long address, unsigned char value, size_t size, const struct stream* stream) {
  (void)address, (void)value, (void)size;
  return work("memset", stream);
}
static int copy(unsigned long long address, const void* from, size_t bytes) {
  (void)address, (void)from, (void)bytes;
  return work("copy", NULL);
}
static int copy_async(unsigned long long address, const void* from, size_t bytes,
                      const struct stream* stream) {
  (void)address, (void)from, (void)bytes;
  return work("copy", stream);
}
static int read_async(void* to, unsigned long long from, size_t bytes, const struct stream* stream) {
  (void)from;
  memset(to, 0, bytes);
  return work("copy", stream);
}
static int anything(void) {
  return count("another call"), 0;
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
                 {"cuKernelSetAttribute", kernel_set_attribute},
                 {"cuCtxGetDevice", get_device},
                 {"cuMemAlloc", allocate},
                 {"cuMemFree", release},
                 {"cuMemGetInfo", memory},
                 {"cuPointerGetAttribute", pointer},
                 {"cuStreamCreate", stream_create},
                 {"cuStreamDestroy", stream_destroy},
                 {"cuStreamIsCapturing", is_capturing},
                 {"cuStreamBeginCapture", begin_capture},
                 {"cuStreamEndCapture", end_capture},
                 {"cuGraphInstantiateWithFlags", instantiate},
                 {"cuGraphExecDestroy", destroy_replay},
                 {"cuGraphLaunch", launch_graph},
                 {"cuLaunchKernel", launch},
                 {"cuLaunchKernelEx", launch_ex},
                 {"cuMemsetD8Async", set8},
                 {"cuMemsetD32Async", set32},
                 {"cuMemcpyHtoD", copy},
                 {"cuMemcpyHtoDAsync", copy_async},
                 {"cuMemcpyDtoHAsync", read_async}};

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
