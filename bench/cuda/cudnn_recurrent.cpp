// cuDNN's recurrent layers as peers, each algorithm forced, on the tensors of our rows and with the same weights. cuDNN keeps the
// weights in an order of its own; they are put into it ahead, as a trainer that is built on it has them. Weight gradients are added
// to what is there, which cuDNN does alone.
#include "bench/cuda/cudnn.hpp"
#include "bench/cuda/peers.hpp"

#include <cstdio>

namespace everglow::bench {
namespace {

struct Algorithm {
  const char* name;
  cudnnRNNAlgo_t code;
};
constexpr Algorithm algorithms[] = {{"peer.cudnn_standard", CUDNN_RNN_ALGO_STANDARD},
                                    {"peer.cudnn_persist_static", CUDNN_RNN_ALGO_PERSIST_STATIC},
                                    {"peer.cudnn_persist_dynamic", CUDNN_RNN_ALGO_PERSIST_DYNAMIC},
                                    {"peer.cudnn_persist_small", CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H}};

cudnnHandle_t handle() {
  static const cudnnHandle_t one = [] {
    cudnnHandle_t made = nullptr;
    check(cudnn().create(&made), "cudnnCreate");
    return made;
  }();
  return one;
}

/// A descriptor of cuDNN, made by one function and ended by another.
template <class Handle>
class Descriptor {
 public:
  Descriptor(cudnnStatus_t (*create)(Handle*), cudnnStatus_t (*destroy)(Handle)) : destroy_(destroy) {
    check(create(&handle_), "a descriptor");
  }
  ~Descriptor() { destroy_(handle_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator Handle() const { return handle_; }

 private:
  cudnnStatus_t (*destroy_)(Handle);
  Handle handle_ = nullptr;
};

cudnnDataType_t type_of(DType dtype) {
  if (dtype == DType::f16) return CUDNN_DATA_HALF;
  return dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

cudnnRNNMode_t mode_of(Cell cell) {
  if (cell == Cell::lstm) return CUDNN_LSTM;
  if (cell == Cell::gru) return CUDNN_GRU;
  return cell == Cell::tanh ? CUDNN_RNN_TANH : CUDNN_RNN_RELU;
}

class CudnnLayer {
 public:
  CudnnLayer(const RecurrentDescription& d, const RecurrentSizes& sizes, std::shared_ptr<const RecurrentTensors> tensors,
             const Settings& settings, cudnnRNNAlgo_t algorithm)
      : d_(d), t_(std::move(tensors)), stream_(settings.stream()) {
    const Cudnn& f = cudnn();
    check(f.set_stream(handle(), static_cast<cudaStream_t>(stream_.handle)), "cudnnSetStream");
    check(f.set_dropout(dropout_, handle(), d.dropout, nullptr, 0, 0), "cudnnSetDropoutDescriptor");
    const cudnnDataType_t type = type_of(d.dtype);
    const bool bias = t_->weights[0].b_ih >= 0;
    check(f.set_rnn(rnn_, algorithm, mode_of(d.cell), bias ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
                    d.bidirectional ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, type, CUDNN_DATA_FLOAT,
                    d.dtype == DType::f32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH, narrow(d.inputs), narrow(d.hidden),
                    narrow(outputs()), narrow(d.layers), dropout_, CUDNN_RNN_PADDED_IO_DISABLED),
          "cudnnSetRNNDescriptor_v8");
    describe(x_, sizes, d.inputs), describe(y_, sizes, d.directions() * outputs());
    describe(h_, sizes, outputs()), describe(c_, sizes, d.hidden);
    if (algorithm == CUDNN_RNN_ALGO_PERSIST_DYNAMIC)
      check(f.build_dynamic(handle(), rnn_, narrow(sizes.batch)), "cudnnBuildRNNDynamic");
    std::size_t scratch = 0, reserve = 0;
    check(f.temp_sizes(handle(), rnn_, mode(), x_, &scratch, &reserve), "cudnnGetRNNTempSpaceSizes");
    check(f.weight_size(handle(), rnn_, &weight_bytes_), "cudnnGetRNNWeightSpaceSize");
    const std::int64_t sets = t_->sets.sets();
    workspace_ = Buffer(scratch, settings.where()), reserve_bytes_ = reserve;
    reserve_ = std::make_unique<ByteSets>(reserve, sets, settings.where());
    weights_ = std::make_unique<ByteSets>(weight_bytes_, sets, settings.where());
    dweights_ = std::make_unique<ByteSets>(d.training ? weight_bytes_ : 0, sets, settings.where());
    for (std::int64_t set = 0; set < sets; ++set) put_weights(set);
    stream_.synchronize();
  }

  void forward(std::int64_t set) const {
    check(cudnn().forward(handle(), rnn_, mode(), nullptr, x_, at(t_->x, set), y_, at(t_->y, set), h_, at(t_->h0, set),
                          at(t_->hn, set), c_, at(t_->c0, set), at(t_->cn, set), weight_bytes_, weights_->at(set).data,
                          workspace_.bytes(), workspace_.data(), reserve_bytes_, reserve_->at(set).data),
          "cudnnRNNForward");
  }
  void backward(std::int64_t set) const {
    check(cudnn().backward_data(handle(), rnn_, nullptr, y_, at(t_->y, set), at(t_->dy, set), x_, at(t_->dx, set), h_,
                                at(t_->h0, set), nullptr, nullptr, c_, at(t_->c0, set), nullptr, nullptr, weight_bytes_,
                                weights_->at(set).data, workspace_.bytes(), workspace_.data(), reserve_bytes_,
                                reserve_->at(set).data),
          "cudnnRNNBackwardData_v8");
    check(cudnn().backward_weights(handle(), rnn_, CUDNN_WGRAD_MODE_ADD, nullptr, x_, at(t_->x, set), h_, at(t_->h0, set), y_,
                                   at(t_->y, set), weight_bytes_, dweights_->at(set).data, workspace_.bytes(), workspace_.data(),
                                   reserve_bytes_, reserve_->at(set).data),
          "cudnnRNNBackwardWeights_v8");
  }

 private:
  std::int64_t outputs() const { return d_.projection > 0 ? d_.projection : d_.hidden; }
  cudnnForwardMode_t mode() const { return d_.training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE; }
  void* at(int tensor, std::int64_t set) const { return t_->at(tensor, set).data; }
  static int narrow(std::int64_t size) { return static_cast<int>(size); }

  void describe(cudnnRNNDataDescriptor_t data, const RecurrentSizes& sizes, std::int64_t columns) const {
    const std::vector<int> lengths(static_cast<std::size_t>(sizes.batch), narrow(sizes.steps));
    // All rows are as long, so that packed is how [T, B, columns] lies.
    check(cudnn().set_data(data, type_of(d_.dtype), CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, narrow(sizes.steps),
                           narrow(sizes.batch), narrow(columns), lengths.data(), nullptr),
          "cudnnSetRNNDataDescriptor");
  }
  void describe(cudnnTensorDescriptor_t state, const RecurrentSizes& sizes, std::int64_t columns) const {
    const int dims[] = {narrow(d_.layers * d_.directions()), narrow(sizes.batch), narrow(columns)};
    const int strides[] = {dims[1] * dims[2], dims[2], 1};
    check(cudnn().set_tensor(state, type_of(d_.dtype), 3, dims, strides), "cudnnSetTensorNdDescriptor");
  }

  /// The matrices and biases of one gate of one layer and direction, from torch's order, which stacks the gates.
  void put_weights(std::int64_t set) const {
    const int gates = gates_of(d_.cell);
    for (std::size_t i = 0; i < t_->weights.size(); ++i) {
      const RecurrentNumbers& w = t_->weights[i];
      for (int gate = 0; gate < 2 * gates; ++gate) {
        const bool input = gate < gates;
        put(set, static_cast<int>(i), gate, part(input ? w.w_ih : w.w_hh, set, gate % gates),
            part(input ? w.b_ih : w.b_hh, set, gate % gates));
      }
      if (w.w_hr >= 0) put(set, static_cast<int>(i), 2 * gates, t_->at(w.w_hr, set), {});
    }
  }
  TensorView part(int tensor, std::int64_t set, std::int64_t gate) const {
    const TensorView all = t_->at(tensor, set);
    return all.given() ? all.narrow(0, gate * d_.hidden, d_.hidden) : all;
  }
  void put(std::int64_t set, int layer, int gate, const TensorView& matrix, const TensorView& bias) const {
    const Descriptor<cudnnTensorDescriptor_t> of_matrix(cudnn().create_tensor, cudnn().destroy_tensor);
    const Descriptor<cudnnTensorDescriptor_t> of_bias(cudnn().create_tensor, cudnn().destroy_tensor);
    void *matrix_at = nullptr, *bias_at = nullptr;
    check(cudnn().weight_params(handle(), rnn_, layer, weight_bytes_, weights_->at(set).data, gate, of_matrix, &matrix_at, of_bias,
                                &bias_at),
          "cudnnGetRNNWeightParams");
    const auto copy_to = [&](void* place, const TensorView& from) {
      if (place == nullptr || !from.given()) return;
      copy(TensorView(place, from.dtype, {from.elements()}, from.device), from.reshaped({from.elements()}), stream_);
    };
    copy_to(matrix_at, matrix), copy_to(bias_at, bias);
  }

  RecurrentDescription d_;
  std::shared_ptr<const RecurrentTensors> t_;
  Stream stream_;
  Descriptor<cudnnDropoutDescriptor_t> dropout_{cudnn().create_dropout, cudnn().destroy_dropout};
  Descriptor<cudnnRNNDescriptor_t> rnn_{cudnn().create_rnn, cudnn().destroy_rnn};
  Descriptor<cudnnRNNDataDescriptor_t> x_{cudnn().create_data, cudnn().destroy_data};
  Descriptor<cudnnRNNDataDescriptor_t> y_{cudnn().create_data, cudnn().destroy_data};
  Descriptor<cudnnTensorDescriptor_t> h_{cudnn().create_tensor, cudnn().destroy_tensor};
  Descriptor<cudnnTensorDescriptor_t> c_{cudnn().create_tensor, cudnn().destroy_tensor};
  std::size_t weight_bytes_ = 0, reserve_bytes_ = 0;
  Buffer workspace_;
  std::unique_ptr<ByteSets> reserve_, weights_, dweights_;
};

/// The algorithm's row, after one run of each pass has shown that it takes the layer.
Row row_of(const Algorithm& algorithm, const std::shared_ptr<const CudnnLayer>& layer, std::int64_t sets, bool training,
           const Stream& stream) {
  const auto forward = [layer](std::int64_t set) { layer->forward(set); };
  const auto backward = [layer](std::int64_t set) { layer->backward(set); };
  forward(0);
  if (training) backward(0);
  stream.synchronize();
  Row row{algorithm.name, sets, {{{}, forward}}};
  if (training) row.passes.push_back({forward, backward});
  return row;
}

}  // namespace

std::string cudnn_fault() { return cudnn().file.fault(); }

std::vector<Row> cudnn_recurrent(const RecurrentDescription& description, const RecurrentSizes& sizes,
                                 const std::shared_ptr<const RecurrentTensors>& tensors, const Settings& settings) {
  const RecurrentDescription& d = description;
  const bool empty = sizes.steps == 0 || sizes.batch == 0 || d.inputs == 0 || d.hidden == 0;
  const bool other = d.lengths || d.resets || d.dropout > 0 || d.dtype == DType::f64 || d.cell == Cell::gru_reset_before;
  if (empty || other || !cudnn_fault().empty()) return {};
  std::vector<Row> out;
  for (const Algorithm& algorithm : algorithms) {
    try {
      const auto layer = std::make_shared<const CudnnLayer>(d, sizes, tensors, settings, algorithm.code);
      out.push_back(row_of(algorithm, layer, tensors->sets.sets(), d.training, settings.stream()));
    } catch (const Error& error) {
      if (!std::string_view(error.what()).starts_with("[bench.cudnn]")) throw;
      std::fprintf(stderr, "%s declines: %s\n", algorithm.name, error.what());
    }
  }
  return out;
}

}  // namespace everglow::bench
