// The parameters of the translation model. Values, gradients and Adam's two moments are four contiguous blocks of one layout, so an
// optimiser step is one call over four dense vectors; the gaps that keep each parameter on 64 bytes hold zeros in all four. A model
// of 16 bits has a fifth block, the values as its layers read them; the four are f32 then.
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

/// The parameters as layers take them.
struct Weights {
  TensorView embedding, embedding_gradient;  // [V, H]
  std::vector<LstmWeights> encoder, decoder;
  LinearWeights projection;  // [H, 2H], one layer only
  LinearWeights query;       // [H, H]
  LinearWeights key_value;   // [2H, H]: attention.key above attention.value
  LinearWeights classifier;  // [V, H], or [V, 2H] with one layer
};

/// What a step reads and writes beside tensors, one block of the device's memory: `told` is copied there, `came` from there.
struct StepScalars {
  TensorView rates;     // f32 [most_steps_ahead + 1]
  TensorView step;      // i64 [1], Adam's counter
  TensorView scaler;    // f32 [3], of a loss scale that moves (AdamStep::scaler)
  TensorView loss;      // f32 [1]; f64 beside f64
  TensorView count;     // f32 [1]
  TensorView norm;      // f32 [1]
  TensorView overflow;  // i32 [1]
};

/// The type of values, gradients and moments of a model.
inline DType master_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

class Parameters {
 public:
  Parameters(const ModelDescription& description, Device device);
  void initialise(std::uint64_t seed, const Stream& stream);

  std::vector<Parameter> list;
  TensorView values, gradients, m, v;  // [all elements]
  TensorView copies;                   // [all elements], of 16 bits; not given: the layers read `values`
  StepScalars scalars;
  Weights weights;  // as the model's type has them
  Weights masters;  // the values themselves, without gradients of their own

 private:
  void declare(std::string name, std::initializer_list<std::int64_t> shape, bool joined = false);
  void declare_lstm(const std::string& prefix, std::int64_t inputs, std::int64_t hidden, bool both_ways);
  void allocate(Device device);
  Weights bind(const ModelDescription& description, bool copied) const;
  void put(const TensorView& to, const std::vector<double>& from, const Stream& stream) const;
  void clear(const Stream& stream);
  Parameter find(std::string_view name, bool copied) const;
  LstmWeights lstm(const std::string& prefix, bool both_ways, bool copied) const;

  DType dtype_, master_;
  std::vector<std::int64_t> offsets_;
  std::int64_t elements_ = 0;
  Buffer memory_;
};

/// Places the scalars of a model from `base` on; returns their bytes.
std::size_t place_scalars(StepScalars& scalars, void* base, Device device, DType dtype);

}  // namespace everglow::gnmt
