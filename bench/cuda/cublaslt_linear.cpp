// A linear layer of plain cuBLASLt calls on the tensors as they lie: one product each, the heuristic's first algorithm, the bias or
// its gradient in the same call. What a program gets that calls the library itself.
#include "bench/cuda/library.hpp"
#include "bench/cuda/peers.hpp"

#include <cublasLt.h>

namespace everglow::bench {
namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what the vendor's guide asks for on Hopper

struct Functions {
  SharedLibrary file{"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)};
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;

  Functions() {
    file.find(create, "cublasLtCreate"), file.find(matmul, "cublasLtMatmul");
    file.find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    file.find(layout_create, "cublasLtMatrixLayoutCreate"), file.find(layout_destroy, "cublasLtMatrixLayoutDestroy");
    file.find(desc_create, "cublasLtMatmulDescCreate"), file.find(desc_destroy, "cublasLtMatmulDescDestroy");
    file.find(desc_set, "cublasLtMatmulDescSetAttribute");
    file.find(preference_create, "cublasLtMatmulPreferenceCreate");
    file.find(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    file.find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
  }
};

const Functions& functions() {
  static const Functions opened;
  return opened;
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const ErrorCode code = status == CUBLAS_STATUS_NOT_SUPPORTED ? ErrorCode::unsupported : ErrorCode::device;
  throw Error(code, "bench.cublaslt", std::string(call) + ": status " + std::to_string(static_cast<int>(status)));
}

cublasLtHandle_t handle() {
  static const cublasLtHandle_t one = [] {
    cublasLtHandle_t made = nullptr;
    check(functions().create(&made), "cublasLtCreate");
    return made;
  }();
  return one;
}

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::f16) return CUDA_R_16F;
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

/// Column-major D[m, n] = op(A)[m, k] op(B)[k, n], as BLAS counts.
struct Form {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0, ldd = 0;
  DType dtype = DType::f32;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};

class Product {
 public:
  explicit Product(const Form& form) {
    const Functions& f = functions();
    check(f.desc_create(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
    const cudaDataType_t type = type_of(form.dtype);
    set(CUBLASLT_MATMUL_DESC_TRANSA, form.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, form.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, form.epilogue);
    if (form.epilogue != CUBLASLT_EPILOGUE_DEFAULT) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    a_ = layout(type, form.transpose_a ? form.k : form.m, form.transpose_a ? form.m : form.k, form.lda);
    b_ = layout(type, form.transpose_b ? form.n : form.k, form.transpose_b ? form.k : form.n, form.ldb);
    d_ = layout(type, form.m, form.n, form.ldd);
    cublasLtMatmulPreference_t preference = nullptr;
    check(f.preference_create(&preference), "preference");
    const std::size_t most = workspace_bytes;
    check(f.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most), "preference");
    int count = 0;
    const cublasStatus_t status = f.heuristic(handle(), description_, a_, b_, d_, d_, preference, 1, &choice_, &count);
    f.preference_destroy(preference);
    check(count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : status, "heuristic");
  }
  ~Product() {
    for (const cublasLtMatrixLayout_t one : {a_, b_, d_})
      if (one != nullptr) functions().layout_destroy(one);
    if (description_ != nullptr) functions().desc_destroy(description_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void run(const TensorView& a, const TensorView& b, const TensorView& d, const TensorView& bias, const Buffer& workspace,
           const Stream& stream) {
    if (bias.given()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data);
    const float one = 1, zero = 0;
    check(functions().matmul(handle(), description_, &one, a.data, a_, b.data, b_, &zero, d.data, d_, d.data, d_, &choice_.algo,
                             workspace.data(), workspace.bytes(), static_cast<cudaStream_t>(stream.handle)),
          "cublasLtMatmul");
  }

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(functions().desc_set(description_, attribute, &value, sizeof value), "attribute");
  }
  static cublasLtMatrixLayout_t layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t ld) {
    cublasLtMatrixLayout_t out = nullptr;
    check(functions().layout_create(&out, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), ld),
          "layout");
    return out;
  }
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
};

cublasLtEpilogue_t forward_epilogue(Activation activation, bool bias) {
  if (activation == Activation::relu) return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  if (activation == Activation::gelu_tanh) return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// Row-major y[b, o] = x[b, i] W[o, i]ᵀ is column-major yᵀ = op(Wᵀ) xᵀ.
class PlainLayer {
 public:
  PlainLayer(const LinearDescription& d, const LinearSizes& sizes, std::shared_ptr<const LinearTensors> tensors,
             const Settings& settings)
      : t_(std::move(tensors)), stream_(settings.stream()), workspace_(workspace_bytes, settings.where()) {
    const auto ld = [&](int tensor) { return t_->at(tensor, 0).stride(0); };
    const std::int64_t b = sizes.batch, i = d.inputs, o = d.outputs;
    const bool bias = t_->bias >= 0;
    forward_ = std::make_unique<Product>(
        Form{o, b, i, true, false, ld(t_->weight), ld(t_->x), ld(t_->y), d.dtype, forward_epilogue(d.activation, bias)});
    if (!d.training) return;
    dx_ = std::make_unique<Product>(Form{i, b, o, false, false, ld(t_->weight), ld(t_->dy), ld(t_->dx), d.dtype});
    dweight_ = std::make_unique<Product>(Form{i, o, b, false, true, ld(t_->x), ld(t_->dy), ld(t_->dweight), d.dtype,
                                              bias ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_DEFAULT});
  }
  void forward(std::int64_t set) const { run(*forward_, {t_->weight, t_->x, t_->y, t_->bias}, set); }
  void dx(std::int64_t set) const { run(*dx_, {t_->weight, t_->dy, t_->dx, -1}, set); }
  void dweight(std::int64_t set) const { run(*dweight_, {t_->x, t_->dy, t_->dweight, t_->dbias}, set); }

 private:
  void run(Product& product, const std::array<int, 4>& tensors, std::int64_t set) const {
    product.run(t_->at(tensors[0], set), t_->at(tensors[1], set), t_->at(tensors[2], set), t_->at(tensors[3], set), workspace_,
                stream_);
  }
  std::shared_ptr<const LinearTensors> t_;
  Stream stream_;
  Buffer workspace_;
  std::unique_ptr<Product> forward_, dx_, dweight_;
};

/// What one product with its epilogue is: no preactivation is stored, so that an activation is for inference.
bool is_one_product(const LinearDescription& d) {
  if (d.layout != LinearLayout::outputs_inputs) return false;
  if (d.activation == Activation::none) return true;
  return !d.training && (d.activation == Activation::relu || d.activation == Activation::gelu_tanh);
}

}  // namespace

std::string cublaslt_fault() { return functions().file.fault(); }

std::vector<Row> cublaslt_linear(const LinearDescription& description, const LinearSizes& sizes,
                                 const std::shared_ptr<const LinearTensors>& tensors, const Settings& settings) {
  const LinearDescription& d = description;
  if (d.dtype == DType::f64 || sizes.batch == 0 || d.inputs == 0 || d.outputs == 0) return {};
  if (!is_one_product(d) || !cublaslt_fault().empty()) return {};
  try {
    const auto layer = std::make_shared<const PlainLayer>(d, sizes, tensors, settings);
    Row row{"peer.cublaslt", tensors->sets.sets(), {{{}, [layer](std::int64_t i) { layer->forward(i); }}}};
    if (d.training) {
      row.passes.push_back({{}, [layer](std::int64_t i) { layer->dx(i), layer->dweight(i); }});
      row.passes.push_back({{}, [layer](std::int64_t i) { layer->dx(i); }});
      row.passes.push_back({{}, [layer](std::int64_t i) { layer->dweight(i); }});
    }
    return {row};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return {};  // the library has no algorithm
  }
}

}  // namespace everglow::bench
