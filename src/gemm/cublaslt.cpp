// Products of cuBLASLt: descriptions, the choice of an algorithm, and the call.
#include "gemm/cublaslt.hpp"

#include "core/check.hpp"
#include "gemm/cublaslt_library.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

namespace everglow::cublaslt {
namespace {

constexpr std::string_view where = "cublaslt";

void check(cublasStatus_t status, std::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::device, where, text(call, ": expected no fault, got ", library().status_name(status)));
}

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::f16) return CUDA_R_16F;
  if (dtype == DType::bf16) return CUDA_R_16BF;
  return CUDA_R_32F;
}

cublasLtEpilogue_t epilogue_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::relu:
      return CUBLASLT_EPILOGUE_RELU;
    case Epilogue::relu_bias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
    case Epilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU;
    case Epilogue::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case Epilogue::gelu_aux:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_aux_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::sum_of_a:
      return CUBLASLT_EPILOGUE_BGRADA;
    case Epilogue::sum_of_b:
      return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::none:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

/// One handle for each card, made on the card that is current.
cublasLtHandle_t handle_of(int card) {
  static std::mutex lock;
  static std::map<int, cublasLtHandle_t> handles;
  const std::lock_guard guard(lock);
  cublasLtHandle_t& handle = handles[card];
  if (handle == nullptr) check(library().create(&handle), "cublasLtCreate");
  return handle;
}

/// The descriptions of one call.
class Call {
 public:
  Call(const Form& form, const Operands& operands) {
    const Library& lib = library();
    const cudaDataType_t in = type_of(form.in), out = type_of(form.out);
    const bool tf32 = form.in == DType::f32 && form.math == Math::tf32;
    check(lib.desc_create(&description, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
    set(CUBLASLT_MATMUL_DESC_TRANSA, form.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, form.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(form.epilogue));
    if (operands.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out);
    }
    if (operands.aux != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, form.ld_aux);
      if (form.out != DType::f32) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, out);
    }
    a = layout(in, form.transpose_a ? form.k : form.m, form.transpose_a ? form.m : form.k, form.lda);
    b = layout(in, form.transpose_b ? form.n : form.k, form.transpose_b ? form.k : form.n, form.ldb);
    d = layout(out, form.m, form.n, form.ldd);
  }
  ~Call() {
    const Library& lib = library();
    for (const cublasLtMatrixLayout_t one : {a, b, d})
      if (one != nullptr) lib.layout_destroy(one);
    if (description != nullptr) lib.desc_destroy(description);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(library().desc_set(description, attribute, &value, sizeof value), "attribute");
  }
  static cublasLtMatrixLayout_t layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t ld) {
    cublasLtMatrixLayout_t out = nullptr;
    check(library().layout_create(&out, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), ld), "layout");
    return out;
  }
};

/// Powers of two that divide the addresses, at most 256.
struct Alignments {
  std::uint32_t a = 256, b = 256, d = 256, bias = 256;
  friend auto operator<=>(const Alignments&, const Alignments&) = default;
};
std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

using Chosen = std::optional<cublasLtMatmulAlgo_t>;

Chosen ask(int card, const Form& form, const Call& call, const Alignments& alignments) {
  const Library& lib = library();
  cublasLtMatmulPreference_t preference = nullptr;
  check(lib.preference_create(&preference), "preference");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(lib.preference_set(preference, attribute, &value, sizeof value), "preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
  // Neither in the type of D nor inside D: parts of a split k are added in f32.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.d);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.d);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      lib.heuristic(handle_of(card), call.description, call.a, call.b, call.d, call.d, preference, 1, &result, &found);
  lib.preference_destroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
      (status == CUBLAS_STATUS_SUCCESS && found == 0))
    return {};
  check(status, text("choice of an algorithm for ", form.m, " x ", form.n, " x ", form.k));
  return result.algo;
}

/// Asked once for each form, alignment and card. Past a bound all are forgotten: a program with that many forms pays for the
/// heuristic again, some 50 us each.
Chosen choice_of(int card, const Form& form, const Call& call, const Alignments& alignments) {
  constexpr std::size_t most = 4096;
  static std::mutex lock;
  static std::map<std::tuple<int, Form, Alignments>, Chosen> known;
  const std::tuple key(card, form, alignments);
  {
    const std::lock_guard guard(lock);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  const Chosen chosen = ask(card, form, call, alignments);
  const std::lock_guard guard(lock);
  if (known.size() >= most) known.clear();
  known.emplace(key, chosen);
  return chosen;
}

std::int64_t config_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t what) {
  std::int32_t value = 0;
  std::size_t written = 0;
  return library().config(&algorithm, what, &value, sizeof value, &written) == CUBLAS_STATUS_SUCCESS ? value : 0;
}

}  // namespace

BackendStatus status() {
  const Library& lib = library();
  return {"cublaslt", lib.fault.empty(), lib.fault.empty() ? lib.version : lib.fault};
}

bool multiply(int card, const Form& form, const Operands& operands, void* workspace, void* stream) {
  const Library& lib = library();
  require(lib.fault.empty(), ErrorCode::unsupported, where, lib.fault);
  const Call call(form, operands);
  const Alignments alignments{alignment_of(operands.a), alignment_of(operands.b),
                              std::min(alignment_of(operands.d), alignment_of(operands.aux)), alignment_of(operands.bias)};
  const Chosen chosen = choice_of(card, form, call, alignments);
  if (!chosen) return false;
  const float alpha = 1, beta = form.accumulate ? 1 : 0;
  check(lib.matmul(handle_of(card), call.description, &alpha, operands.a, call.a, operands.b, call.b, &beta, operands.d, call.d,
                   operands.d, call.d, &*chosen, workspace, workspace_bytes, static_cast<cudaStream_t>(stream)),
        "cublasLtMatmul");
  return true;
}

std::string algorithm_text(int card, const Form& form) {
  if (!library().fault.empty()) return {};
  // The heuristic asks whether there is a bias and an auxiliary output, not where.
  Operands operands;
  alignas(256) static char somewhere[256];
  if (form.epilogue != Epilogue::none && form.epilogue != Epilogue::relu && form.epilogue != Epilogue::gelu)
    operands.bias = somewhere;
  if (form.epilogue == Epilogue::gelu_aux || form.epilogue == Epilogue::gelu_aux_bias) operands.aux = somewhere;
  const Call call(form, operands);
  const Chosen chosen = choice_of(card, form, call, {});
  if (!chosen) return {};
  return text("algorithm ", config_of(*chosen, CUBLASLT_ALGO_CONFIG_ID), ", tile ",
              config_of(*chosen, CUBLASLT_ALGO_CONFIG_TILE_ID), ", stages ", config_of(*chosen, CUBLASLT_ALGO_CONFIG_STAGES_ID),
              ", split-k ", std::max<std::int64_t>(config_of(*chosen, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), 1), " (", library().version,
              ')');
}

}  // namespace everglow::cublaslt
