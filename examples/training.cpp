// Training by hand: a linear layer learns the line that noisy points lie on. Forward, the gradient of the squared error, backward,
// and a step of Adam, all in memory that is made once.
#include <everglow/everglow.hpp>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  using namespace everglow;
  const std::int64_t batch = 64, inputs = 3, outputs = 1;
  const LinearPlan layer({.inputs = inputs, .outputs = outputs, .training = true}, {.batch = batch});
  const AdamPlan adam({.clip = 1}, {.parameters = inputs + 1, .tensors = 2});

  // The points: y = 2 a - b + 0.5 c + 3, and a little noise.
  std::mt19937 random(1);
  const auto draw = [&] { return static_cast<float>(random() % 2001) / 1000 - 1; };
  std::vector<float> x(batch * inputs), target(batch), y(batch), dy(batch);
  for (float& value : x) value = draw();
  for (int i = 0; i < batch; ++i) target[i] = 2 * x[3 * i] - x[3 * i + 1] + 0.5F * x[3 * i + 2] + 3 + 0.1F * draw();

  // What Adam keeps of each parameter: its gradient and two moments that begin with 0.
  std::vector<float> weight(inputs), bias(outputs), dweight(inputs), dbias(outputs);
  std::vector<float> weight_m(inputs), weight_v(inputs), bias_m(outputs), bias_v(outputs);
  const auto matrix = [](std::vector<float>& memory, std::int64_t rows, std::int64_t columns) {
    return TensorView(memory.data(), DType::f32, {rows, columns});
  };
  const auto vector = [](std::vector<float>& memory) {
    return TensorView(memory.data(), DType::f32, {static_cast<std::int64_t>(memory.size())});
  };
  const AdamTensor parameters[] = {
      {.parameter = vector(weight), .gradient = vector(dweight), .m = vector(weight_m), .v = vector(weight_v)},
      {.parameter = vector(bias), .gradient = vector(dbias), .m = vector(bias_m), .v = vector(bias_v)}};
  float rate = 0.05F;
  std::int64_t steps_taken = 0;
  const Buffer layer_scratch(layer.workspace_bytes(), Device::cpu()), adam_scratch(adam.workspace_bytes(), Device::cpu());

  double loss = 0;
  for (int step = 0; step <= 300; ++step) {
    layer.forward({.x = matrix(x, batch, inputs),
                   .weight = matrix(weight, outputs, inputs),
                   .bias = vector(bias),
                   .y = matrix(y, batch, outputs)},
                  layer_scratch);
    loss = 0;
    for (int i = 0; i < batch; ++i) {
      const float error = y[i] - target[i];
      loss += error * error / batch;
      dy[i] = 2 * error / batch;
    }
    if (step % 100 == 0) std::printf("step %3d: loss %.4f\n", step, loss);
    layer.backward({.dy = matrix(dy, batch, outputs),
                    .x = matrix(x, batch, inputs),
                    .dweight = matrix(dweight, outputs, inputs),
                    .dbias = vector(dbias)},
                   layer_scratch);
    adam.step({.tensors = parameters, .step = {&steps_taken, DType::i64, {1}}, .rate = {&rate, DType::f32, {1}}}, adam_scratch);
  }
  std::printf("y = %.2f a %+.2f b %+.2f c %+.2f\n", weight[0], weight[1], weight[2], bias[0]);
  return loss < 0.01 && std::abs(bias[0] - 3) < 0.1F ? 0 : 1;
}
