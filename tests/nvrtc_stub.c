// A library with NVRTC's functions, so that tests can meet versions and failures that the machine does not
// have. STUB_MAJOR, STUB_MINOR: the version it claims. STUB_LACKS_ARCHS leaves out functions that NVRTC 12.0
// has. It knows the options that a version has and refuses others. A "cubin" holds the options, one a line.
// What a source says decides how its compilation ends: @compile, @builtins and @internal make it fail in that
// way; STUB_NVRTC_FAILS=builtins does so whatever the source is.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ok = 0, invalid_option = 5, compile_failed = 6, builtins_failed = 7, internal_error = 11 };

struct program {
  char source[1024], name[64], log[1024], code[1024];
  int ptx_only;
};

#define AT_LEAST(major, minor) (STUB_MAJOR > (major) || (STUB_MAJOR == (major) && STUB_MINOR >= (minor)))

int nvrtcVersion(int* major, int* minor) {
  *major = STUB_MAJOR;
  *minor = STUB_MINOR;
  return ok;
}

const char* nvrtcGetErrorString(int result) {
  return result == ok ? "OK" : "STUB_ERROR";
}

#ifndef STUB_LACKS_ARCHS
static const int archs[] = {90, 80, 75};
int nvrtcGetNumSupportedArchs(int* count) {
  *count = sizeof archs / sizeof *archs;
  return ok;
}
int nvrtcGetSupportedArchs(int* found) {
  memcpy(found, archs, sizeof archs);
  return ok;
}
#endif

int nvrtcCreateProgram(struct program** made, const char* source, const char* name, int headers,
                       const char* const* texts, const char* const* names) {
  (void)headers, (void)texts, (void)names;
  *made = calloc(1, sizeof **made);
  snprintf((*made)->source, sizeof(*made)->source, "%s", source);
  snprintf((*made)->name, sizeof(*made)->name, "%s", name);
  return ok;
}

int nvrtcDestroyProgram(struct program** made) {
  free(*made);
  *made = NULL;
  return ok;
}

static int known(const char* option) {
  if (strcmp(option, "--no-cache") == 0) return AT_LEAST(12, 9);
  if (strcmp(option, "--minimal") == 0) return AT_LEAST(12, 4);
  return strstr(option, "--nonsense") == NULL;
}

int nvrtcCompileProgram(struct program* p, int count, const char* const* options) {
  for (int i = 0; i < count; ++i) {
    if (!known(options[i])) {
      snprintf(p->log, sizeof p->log, "nvrtc: error: unrecognized option %s found", options[i]);
      return invalid_option;
    }
    if (strstr(options[i], "=compute_") != NULL) p->ptx_only = 1;
    strncat(p->code, options[i], sizeof p->code - strlen(p->code) - 1);
    strncat(p->code, "\n", sizeof p->code - strlen(p->code) - 1);
  }
  if (strstr(p->source, "@compile") != NULL) {
    snprintf(p->log, sizeof p->log, "%s(2): error: identifier \"x\" is undefined\n\n1 error detected.\n",
             p->name);
    return compile_failed;
  }
  const char* fails = getenv("STUB_NVRTC_FAILS");
  if (strstr(p->source, "@builtins") != NULL || (fails != NULL && strcmp(fails, "builtins") == 0)) {
    snprintf(p->log, sizeof p->log, "nvrtc: error: failed to open libnvrtc-builtins.so.%d.%d.", STUB_MAJOR,
             STUB_MINOR);
    return builtins_failed;
  }
  if (strstr(p->source, "@internal") != NULL) return internal_error;
  return ok;
}

static int get(const char* text, char* out) {
  memcpy(out, text, strlen(text) + 1);
  return ok;
}

int nvrtcGetProgramLogSize(struct program* p, size_t* size) {
  *size = strlen(p->log) + 1;
  return ok;
}
int nvrtcGetProgramLog(struct program* p, char* log) {
  return get(p->log, log);
}
int nvrtcGetPTXSize(struct program* p, size_t* size) {
  *size = strlen(p->code) + 1;
  return ok;
}
int nvrtcGetPTX(struct program* p, char* ptx) {
  return get(p->code, ptx);
}
int nvrtcGetCUBINSize(struct program* p, size_t* size) {
  *size = p->ptx_only ? 0 : strlen(p->code);
  return ok;
}
int nvrtcGetCUBIN(struct program* p, char* cubin) {
  memcpy(cubin, p->code, strlen(p->code));
  return ok;
}
