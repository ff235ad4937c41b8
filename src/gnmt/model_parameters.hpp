// The parameters of the translation model. Values, gradients and Adam's two moments are four contiguous blocks of one layout, so an
// optimiser step is one call over four dense vectors; the gaps that keep each parameter on 64 bytes hold zeros in all four.
#pragma once

#include <everglow/gnmt/model.hpp>

#include <string_view>
#include <vector>

namespace everglow::gnmt {

struct LinearWeights {
  TensorView weight, bias, weight_gradient, bias_gradient;  // the biases are not given where the layer has none
};

/// Of one LSTM layer, one entry for each direction.
struct LstmWeights {
  std::vector<RecurrentWeights> values;
  std::vector<RecurrentWeightGradients> gradients;
};

class Parameters {
 public:
  Parameters(const ModelDescription& description, Device device);
  void initialise(std::uint64_t seed, const Stream& stream);

  std::vector<Parameter> list;
  TensorView values, gradients, m, v;        // [all elements]
  TensorView step;                           // i64 [1]
  TensorView embedding, embedding_gradient;  // [V, H]
  std::vector<LstmWeights> encoder, decoder;
  LinearWeights projection;  // [H, 2H], one layer only
  LinearWeights query;       // [H, H]
  LinearWeights key_value;   // [2H, H]: attention.key above attention.value
  LinearWeights classifier;  // [V, H], or [V, 2H] with one layer

 private:
  void declare(std::string name, std::initializer_list<std::int64_t> shape, bool joined = false);
  void declare_lstm(const std::string& prefix, std::int64_t inputs, std::int64_t hidden, bool both_ways);
  void allocate(Device device);
  void bind(const ModelDescription& description);
  void put(const TensorView& to, const std::vector<double>& from, const Stream& stream) const;
  void clear(const Stream& stream);
  const Parameter& find(std::string_view name) const;
  LstmWeights lstm(const std::string& prefix, bool both_ways) const;

  DType dtype_;
  std::vector<std::int64_t> offsets_;
  std::int64_t elements_ = 0;
  Buffer memory_;
};

}  // namespace everglow::gnmt
