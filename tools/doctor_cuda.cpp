#include "tools/doctor_cuda.h"

#include <fmt/format.h>

#ifdef LOSSC_HAS_CUDA
#include <nvrtc.h>

#include "compiler/cuda/nvrtc.h"
#include "compiler/cuda/nvrtc_search.h"
#include "lossc/error.h"
#include "runtime/cuda/driver.h"
#endif

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

#ifdef LOSSC_HAS_CUDA

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Json driver() {
  Json json = {{"found", cuda::driver_available()}, {"tried", cuda::driver_tried()}};
  try {
    const cuda::Driver& found = cuda::driver();
    json["found"] = true;
    json["library"] = found.path;
    json["cuda_version"] = version_text(found.version);
  } catch (const Error& error) {
    json["problem"] = error.what();
  }
  return json;
}

// What kernels are compiled as for a GPU; null without NVRTC.
Json compiled_as(const std::string& arch) {
  try {
    return cuda::nvrtc_target(arch).target;
  } catch (const Error&) {
    return nullptr;
  }
}

// What is wrong between a GPU, the driver and NVRTC; null where nothing is.
Json mismatch(const std::string& arch) {
  try {
    const cuda::NvrtcBuild& build = cuda::nvrtc_build();
    const cuda::NvrtcTarget target = cuda::nvrtc_target(arch);
    if (!target.ptx_only) return nullptr;
    const int version = cuda::driver().version;
    std::string text =
        fmt::format("NVRTC {}.{} does not know {}: kernels are {}, which the driver translates", build.major,
                    build.minor, arch, target.target);
    if (version < 1000 * build.major + 10 * build.minor) {
      text += fmt::format(", and the driver, for CUDA {}, may be too old for it", version_text(version));
    }
    return text;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unsupported && cuda::nvrtc_status().starts_with("not found"))
      return nullptr;
    return error.what();
  }
}

Json device(int ordinal) {
  try {
    const cuda::Device& found = cuda::Device::get(ordinal);
    return {{"name", found.name()},
            {"compiled_as", compiled_as(found.arch())},
            {"mismatch", mismatch(found.arch())},
            {"arch", found.arch()},
            {"multiprocessors", found.sm_count()},
            {"memory_bytes", found.memory_bytes()},
            {"l2_bytes", found.l2_bytes()},
            {"max_shared_bytes", found.max_shared_bytes()}};
  } catch (const Error& error) {
    return {{"problem", error.what()}};
  }
}

Json devices() {
  Json json = Json::array();
  if (!cuda::driver_available()) return json;
  for (int ordinal = 0; ordinal < cuda::Device::count(); ++ordinal) {
    Json one = device(ordinal);
    one["device"] = fmt::format("cuda:{}", ordinal);
    json.push_back(std::move(one));
  }
  return json;
}

Json nvrtc() {
  Json json = {{"found", false}, {"tried", cuda::nvrtc_tried()}};
  try {
    const cuda::NvrtcBuild& build = cuda::nvrtc_build();
    json["found"] = true;
    json["version"] = fmt::format("{}.{}", build.major, build.minor);
    json["library"] = build.path;
    json["build_id"] = build.build_id;
    json["archs"] = build.archs;
    json["builtins"] = build.builtins_path.empty() ? Json(nullptr) : Json(build.builtins_path);
    json["builtins_build_id"] = build.builtins_build_id;
    if (build.builtins_path.empty()) {
      json["problem"] = fmt::format(
          "libnvrtc-builtins.so.{}.{} was not found, and nothing compiles without it: put it next to "
          "libnvrtc.so, "
          "or {}",
          build.major, build.minor, cuda::kNvrtcRemedy);
    }
  } catch (const Error& error) {
    json["problem"] = fmt::format("not found; {}", cuda::kNvrtcRemedy);
  }
  return json;
}

#endif

// Enough of a build-id to tell two apart by eye.
std::string short_id(const std::string& id) {
  const std::size_t prefix = id.starts_with("sha256:") ? 7 : 0;
  return id.substr(0, prefix + 12);
}

std::string nvrtc_text(const Json& nvrtc) {
  std::string text;
  if (nvrtc["found"].get<bool>()) {
    text = fmt::format("{} ({}, build {})\nfor", nvrtc["version"].get<std::string>(),
                       nvrtc["library"].get<std::string>(), short_id(nvrtc["build_id"]));
    for (const auto& arch : nvrtc["archs"]) text += fmt::format(" sm_{}", arch.get<int>());
    if (nvrtc["builtins"].is_string()) text += "\nbuiltins " + nvrtc["builtins"].get<std::string>();
  }
  if (nvrtc.contains("problem")) text += (text.empty() ? "" : "\n") + nvrtc["problem"].get<std::string>();
  if (!nvrtc["found"].get<bool>()) {
    for (const auto& attempt : nvrtc["tried"]) text += "\n  tried " + attempt.get<std::string>();
  }
  return text;
}

std::string device_text(const Json& device) {
  if (device.contains("problem")) return device["problem"].get<std::string>();
  constexpr double kMiB = 1024.0 * 1024.0, kGiB = kMiB * 1024.0;
  std::string text =
      fmt::format("{} ({}, {} multiprocessors, {:.1f} GiB, L2 {:.0f} MiB)", device["name"].get<std::string>(),
                  device["arch"].get<std::string>(), device["multiprocessors"].get<int>(),
                  device["memory_bytes"].get<double>() / kGiB, device["l2_bytes"].get<double>() / kMiB);
  if (device["mismatch"].is_string()) text += "\n" + device["mismatch"].get<std::string>();
  return text;
}

}  // namespace

Json doctor_cuda() {
#ifdef LOSSC_HAS_CUDA
  return {{"headers", {{"version", version_text(CUDA_VERSION)}, {"folder", LOSSC_CUDA_HEADERS}}},
          {"driver", driver()},
          {"devices", devices()},
          {"nvrtc", nvrtc()}};
#else
  const Json none = {{"found", false},
                     {"tried", Json::array()},
                     {"problem", "not looked for: this build has no CUDA backend"}};
  return {{"headers", nullptr}, {"driver", none}, {"devices", Json::array()}, {"nvrtc", none}};
#endif
}

std::vector<std::pair<std::string, std::string>> doctor_cuda_lines(const Json& found) {
  if (found["headers"].is_null()) {
    return {{"CUDA backend", "not in this build (it needs cuda.h and nvrtc.h: ./dev setup)"},
            {"NVIDIA driver", "not looked for"},
            {"NVRTC", "not looked for"}};
  }
  std::vector<std::pair<std::string, std::string>> lines;
  lines.emplace_back("CUDA backend", fmt::format("built with the headers of CUDA {} ({})",
                                                 found["headers"]["version"].get<std::string>(),
                                                 found["headers"]["folder"].get<std::string>()));
  const Json& driver = found["driver"];
  lines.emplace_back("NVIDIA driver",
                     driver.contains("problem")
                         ? driver["problem"].get<std::string>()
                         : fmt::format("for CUDA {} ({})", driver["cuda_version"].get<std::string>(),
                                       driver["library"].get<std::string>()));
  for (const Json& device : found["devices"]) {
    lines.emplace_back(device["device"].get<std::string>(), device_text(device));
  }
  lines.emplace_back("NVRTC", nvrtc_text(found["nvrtc"]));
  return lines;
}

}  // namespace lossc::cli
