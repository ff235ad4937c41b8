// The problems of `everglow plan --self-test`: sizes that users have and odd ones, from calls of some microseconds to some
// milliseconds.
#include "cli/plan_measure.hpp"

namespace everglow::cli {
namespace {

constexpr const char* linear_lines[] = {
    "linear batch=1 inputs=1024 outputs=1024",
    "linear batch=1 inputs=4096 outputs=1024 dtype=bf16",
    "linear batch=2 inputs=512 outputs=2048",
    "linear batch=4 inputs=1024 outputs=4096",
    "linear batch=8 inputs=256 outputs=256",
    "linear batch=8 inputs=768 outputs=3072 dtype=bf16",
    "linear batch=16 inputs=1024 outputs=4096",
    "linear batch=16 inputs=1024 outputs=4096 dtype=bf16",
    "linear batch=16 inputs=4096 outputs=1024 dtype=f16",
    "linear batch=32 inputs=512 outputs=512",
    "linear batch=32 inputs=100 outputs=300",
    "linear batch=48 inputs=768 outputs=768 layout=inputs_outputs",
    "linear batch=64 inputs=256 outputs=1024",
    "linear batch=64 inputs=2048 outputs=512 dtype=bf16",
    "linear batch=64 inputs=1000 outputs=1000",
    "linear batch=100 inputs=784 outputs=128",
    "linear batch=128 inputs=1024 outputs=1024",
    "linear batch=128 inputs=1024 outputs=1024 dtype=bf16",
    "linear batch=128 inputs=512 outputs=8000",
    "linear batch=128 inputs=300 outputs=300 dtype=f16",
    "linear batch=200 inputs=64 outputs=1024",
    "linear batch=256 inputs=256 outputs=256",
    "linear batch=256 inputs=512 outputs=2048 dtype=bf16",
    "linear batch=256 inputs=1023 outputs=1025",
    "linear batch=256 inputs=768 outputs=768 activation=gelu_tanh",
    "linear batch=256 inputs=768 outputs=768 dtype=f16",
    "linear batch=384 inputs=128 outputs=512",
    "linear batch=512 inputs=256 outputs=1024",
    "linear batch=512 inputs=256 outputs=1024 dtype=bf16",
    "linear batch=512 inputs=1024 outputs=1024",
    "linear batch=512 inputs=1024 outputs=256 layout=inputs_outputs",
    "linear batch=512 inputs=64 outputs=64 activation=relu",
    "linear batch=640 inputs=400 outputs=100 dtype=bf16",
    "linear batch=1000 inputs=32 outputs=256",
    "linear batch=1024 inputs=256 outputs=256 activation=silu",
    "linear batch=1024 inputs=512 outputs=512 dtype=bf16",
    "linear batch=1024 inputs=128 outputs=128",
    "linear batch=2048 inputs=256 outputs=256",
    "linear batch=2048 inputs=128 outputs=512 dtype=bf16",
    "linear batch=4096 inputs=64 outputs=64",
};

constexpr const char* recurrent_lines[] = {
    "recurrent cell=lstm steps=16 batch=1 inputs=256 hidden=256",
    "recurrent cell=lstm steps=16 batch=16 inputs=256 hidden=256",
    "recurrent cell=lstm steps=16 batch=64 inputs=256 hidden=256",
    "recurrent cell=lstm steps=16 batch=64 inputs=256 hidden=256 dtype=bf16",
    "recurrent cell=lstm steps=10 batch=128 inputs=256 hidden=256",
    "recurrent cell=lstm steps=32 batch=32 inputs=128 hidden=128",
    "recurrent cell=lstm steps=50 batch=64 inputs=64 hidden=64",
    "recurrent cell=lstm steps=12 batch=32 inputs=512 hidden=512",
    "recurrent cell=lstm steps=12 batch=64 inputs=512 hidden=512 dtype=bf16",
    "recurrent cell=lstm steps=64 batch=8 inputs=128 hidden=128 dtype=f16",
    "recurrent cell=lstm steps=20 batch=32 inputs=128 hidden=128 bidirectional=1",
    "recurrent cell=lstm steps=16 batch=48 inputs=100 hidden=200 layers=2",
    "recurrent cell=gru steps=16 batch=1 inputs=256 hidden=256",
    "recurrent cell=gru steps=16 batch=64 inputs=256 hidden=256",
    "recurrent cell=gru steps=16 batch=64 inputs=256 hidden=256 dtype=f16",
    "recurrent cell=gru steps=24 batch=32 inputs=300 hidden=300",
    "recurrent cell=gru_reset_before steps=16 batch=32 inputs=256 hidden=256",
    "recurrent cell=tanh steps=32 batch=64 inputs=256 hidden=256",
    "recurrent cell=tanh steps=32 batch=16 inputs=512 hidden=512 dtype=bf16",
    "recurrent cell=relu steps=50 batch=128 inputs=128 hidden=128",
};

constexpr const char* attention_lines[] = {
    "attention batch=1 queries=512 keys=512 heads=4 head_dim=64",
    "attention batch=1 queries=1024 keys=1024 heads=2 head_dim=64",
    "attention batch=1 queries=1024 keys=1024 heads=2 head_dim=64 causal=1",
    "attention batch=1 queries=1024 keys=1024 heads=2 head_dim=128 dtype=bf16",
    "attention batch=2 queries=256 keys=256 heads=8 head_dim=64",
    "attention batch=2 queries=256 keys=256 heads=8 head_dim=64 dtype=bf16",
    "attention batch=4 queries=128 keys=128 heads=8 head_dim=32",
    "attention batch=4 queries=512 keys=512 heads=4 head_dim=64 causal=1",
    "attention batch=16 queries=64 keys=64 heads=4 head_dim=64",
    "attention batch=64 queries=32 keys=32 heads=4 head_dim=64",
    "attention batch=64 queries=32 keys=32 heads=4 head_dim=64 dtype=bf16",
    "attention batch=32 queries=20 keys=48 heads=8 head_dim=32",
    "attention batch=8 queries=100 keys=300 heads=4 head_dim=48",
    "attention batch=4 queries=200 keys=1000 heads=4 head_dim=64",
    "attention batch=32 queries=1 keys=1024 heads=8 head_dim=64",
    "attention batch=32 queries=1 keys=1024 heads=8 head_dim=64 dtype=bf16",
    "attention batch=8 queries=4 keys=2048 heads=8 head_dim=128",
    "attention batch=2 queries=384 keys=384 heads=8 kv_heads=2 head_dim=64",
    "attention batch=1 queries=2048 keys=2048 heads=1 head_dim=64 dtype=f16",
    "attention batch=2 queries=768 keys=768 heads=2 head_dim=96 causal=1 dtype=bf16",
};

}  // namespace

std::vector<std::string> self_test_lines(std::string_view layer) {
  if (layer == "linear") return {std::begin(linear_lines), std::end(linear_lines)};
  if (layer == "recurrent") return {std::begin(recurrent_lines), std::end(recurrent_lines)};
  return {std::begin(attention_lines), std::end(attention_lines)};
}

}  // namespace everglow::cli
