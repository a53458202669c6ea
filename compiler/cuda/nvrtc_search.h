// Where NVRTC is looked for.
#pragma once

#include <string>
#include <vector>

namespace lossc::cuda {

/// One thing to open.
struct NvrtcCandidate {
  std::string name;          ///< A file, or a soname for the loader to search for.
  bool only_loaded = false;  ///< Only if the process has it already.
  bool required = false;     ///< The user named it: nothing else will do.
};

/// What to try, in order: the file that LOSSC_NVRTC names, and nothing else; without it a copy that the
/// process has loaded already (a framework's, most often: a second one would cost 100 MB), the folders of a
/// CUDA toolkit, those of Python's wheels, the loader's own search. Folders without the library are left out.
std::vector<NvrtcCandidate> nvrtc_candidates();

/// The folders that nvrtc_candidates() looks into, whether they exist or not.
std::vector<std::string> nvrtc_folders();

/// What to do when there is no NVRTC that works.
inline constexpr const char* kNvrtcRemedy =
    "install the CUDA toolkit (12.0 or newer) or the Python package nvidia-cuda-nvrtc, or set LOSSC_NVRTC to "
    "the "
    "file of libnvrtc.so";

}  // namespace lossc::cuda
