// Incremental decoding: the state of every row, the cached keys and values, packed weights, and one step of the decoder.
#include "model_impl.hpp"

#include <algorithm>
#include <numeric>
#include <string>

namespace everglow::gnmt {
namespace {

/// A table and the place its chosen rows are gathered into; the two change places after each step.
struct Rows {
  TensorView now, next;
};

struct LayerState {
  RecurrentPlan plan;
  PackedWeights packed{};
  Rows h{}, c{};        // [1, rows, H]
  TensorView input{};   // [1, rows, I]
  TensorView output{};  // [1, rows, H], where the step writes
  TensorView sum{};     // [1, rows, H], where the next layer (or the classifier) reads
};

class State final : public DecoderState {
 public:
  State(const Setting& setting, std::int64_t sentences, std::int64_t source_steps, std::int64_t beam);
  void pack();
  /// Takes over keys, values [S, B, 2H] and lengths of the sources.
  void fill(const TensorView& key_value, const std::vector<std::int32_t>& lengths);
  ConstTensorView step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents);
  std::vector<LayerChoice> choices() const;

 private:
  void lay_out(Carver& carver);
  void lay_out_layers(Carver& carver);
  std::size_t workspace_bytes() const;
  void check(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents) const;
  void keep_sentences(std::span<const std::int32_t> parents);
  void take_over(std::span<const std::int32_t> parents);
  void run_layers(std::int64_t rows);
  void attend(std::int64_t rows);
  ConstTensorView classify(std::int64_t rows);
  TensorView first(const TensorView& view, std::int64_t rows) const { return view.narrow(1, 0, rows); }

  const Setting& setting_;
  std::int64_t sentences_, source_steps_, beam_;  // sentences_: still being decoded
  std::int64_t most_rows_;
  std::int64_t fed_ = 0;  // steps taken
  std::vector<std::int32_t> lengths_;
  EmbeddingPlan embedding_, gather_, gather_keys_;
  LinearPlan query_plan_, classifier_plan_;
  PackedWeights query_packed_, classifier_packed_;
  AttentionPlan attention_;
  SoftmaxPlan softmax_;
  Elementwise elementwise_;
  std::optional<PointwisePlan> narrow_plan_;  // f64 -> f32
  std::vector<LayerState> layers_;
  TensorView workspace_view_, indices_, lengths_view_;
  Rows key_value_;     // [B, S, 2H]
  TensorView joined_;  // [1, rows, 2H]
  TensorView query_;   // [1, rows, H]
  TensorView logits_;  // [rows, V]
  TensorView narrow_;  // f32 [rows, V] where the logits are f64
  Workspace workspace_;
  Buffer memory_;
};

/// A table of `rows` rows whose width is that of the model, or of a sentence's keys and values.
EmbeddingPlan gather_plan(const Setting& setting, std::int64_t rows, std::int64_t width) {
  return EmbeddingPlan({.vocabulary = rows, .width = width, .dtype = setting.model.dtype}, {rows}, setting.device, setting.options);
}

State::State(const Setting& setting, std::int64_t sentences, std::int64_t source_steps, std::int64_t beam)
    : setting_(setting),
      sentences_(sentences),
      source_steps_(source_steps),
      beam_(beam),
      most_rows_(sentences * beam),
      embedding_({.vocabulary = setting.model.vocabulary, .width = setting.model.hidden, .dtype = setting.model.dtype},
                 {most_rows_}, setting.device, setting.options),
      gather_(gather_plan(setting, most_rows_, setting.model.hidden)),
      gather_keys_(gather_plan(setting, sentences, source_steps * 2 * setting.model.hidden)),
      query_plan_({.inputs = setting.model.hidden, .outputs = setting.model.hidden, .dtype = setting.model.dtype}, {most_rows_},
                  setting.device, setting.options),
      classifier_plan_({.inputs = setting.model.layers == 1 ? 2 * setting.model.hidden : setting.model.hidden,
                        .outputs = setting.model.vocabulary,
                        .dtype = setting.model.dtype},
                       {most_rows_}, setting.device, setting.options),
      attention_(attention_description(setting.model, false), {.batch = sentences, .queries = beam, .keys = source_steps},
                 setting.device, setting.options),
      softmax_({.dtype = setting.model.dtype, .log = true}, {most_rows_, setting.model.vocabulary}, setting.device,
               setting.options),
      elementwise_(setting, 0, 2 * setting.model.hidden * std::max(most_rows_, sentences * source_steps)) {
  const std::int64_t H = setting.model.hidden;
  for (std::int64_t l = 0; l < setting.model.layers; ++l)
    layers_.push_back({.plan = RecurrentPlan(lstm_description(setting.model, l == 0 ? H : 2 * H, false), {1, most_rows_},
                                             setting.device, setting.options)});
  if (setting.model.dtype != DType::f32)
    narrow_plan_.emplace(PointwiseDescription{}, PointwiseSizes{most_rows_ * setting.model.vocabulary}, setting.device,
                         setting.options);
  Carver counter(nullptr, setting.device.device);
  lay_out(counter);
  memory_ = Buffer(std::max<std::size_t>(counter.bytes(), 1), setting.device.device);
  Carver carver(memory_.data(), setting.device.device);
  lay_out(carver);
}

std::size_t State::workspace_bytes() const {
  std::size_t bytes = std::max({embedding_.workspace_bytes(), gather_.workspace_bytes(), gather_keys_.workspace_bytes(),
                                query_plan_.workspace_bytes(), classifier_plan_.workspace_bytes(), attention_.workspace_bytes(),
                                softmax_.workspace_bytes(), elementwise_.workspace_bytes()});
  for (const LayerState& layer : layers_) bytes = std::max(bytes, layer.plan.workspace_bytes());
  return narrow_plan_ ? std::max(bytes, narrow_plan_->workspace_bytes()) : bytes;
}

void State::lay_out_layers(Carver& carver) {
  const DType dtype = setting_.model.dtype;
  const std::int64_t R = most_rows_, H = setting_.model.hidden;
  const auto below = [H](const TensorView& wide) { return wide.narrow(2, 0, H); };
  for (std::size_t l = 0; l < layers_.size(); ++l)
    layers_[l].input = l == 1 ? joined_ : carver.take(dtype, {1, R, l == 0 ? H : 2 * H});
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    LayerState& layer = layers_[l];
    for (Rows* rows : {&layer.h, &layer.c}) *rows = {carver.take(dtype, {1, R, H}), carver.take(dtype, {1, R, H})};
    if (l == 0)
      layer.sum = below(joined_);
    else
      layer.sum = l + 1 < layers_.size() ? below(layers_[l + 1].input) : carver.take(dtype, {1, R, H});
    layer.output = l >= 2 ? carver.take(dtype, {1, R, H}) : layer.sum;
    layer.packed.bytes = carver.take_bytes(layer.plan.packed_bytes());
  }
}

void State::lay_out(Carver& carver) {
  const DType dtype = setting_.model.dtype;
  const std::int64_t R = most_rows_, H = setting_.model.hidden, V = setting_.model.vocabulary;
  workspace_view_ = carver.take_bytes(workspace_bytes());
  workspace_ = workspace_of(workspace_view_);
  elementwise_.workspace = workspace_;
  indices_ = carver.take(DType::i32, {std::max(R, sentences_)});
  lengths_view_ = carver.take(DType::i32, {sentences_});
  joined_ = carver.take(dtype, {1, R, 2 * H});
  lay_out_layers(carver);
  query_ = carver.take(dtype, {1, R, H});
  key_value_ = {carver.take(dtype, {sentences_, source_steps_, 2 * H}), carver.take(dtype, {sentences_, source_steps_, 2 * H})};
  query_packed_.bytes = carver.take_bytes(query_plan_.packed_bytes());
  classifier_packed_.bytes = carver.take_bytes(classifier_plan_.packed_bytes());
  logits_ = carver.take(dtype, {R, V});
  if (narrow_plan_) narrow_ = carver.take(DType::f32, {R, V});
}

void State::pack() {
  const Weights& parameters = *setting_.parameters;
  for (std::size_t l = 0; l < layers_.size(); ++l)
    if (layers_[l].plan.packed_bytes() > 0) layers_[l].plan.pack(parameters.decoder[l].values, layers_[l].packed, setting_.stream);
  if (query_plan_.packed_bytes() > 0) query_plan_.pack(parameters.query.weight, query_packed_, setting_.stream);
  if (classifier_plan_.packed_bytes() > 0) classifier_plan_.pack(parameters.classifier.weight, classifier_packed_, setting_.stream);
}

void State::fill(const TensorView& key_value, const std::vector<std::int32_t>& lengths) {
  elementwise_.copy(key_value_.now, key_value.transposed(0, 1));
  lengths_ = lengths;
  upload(lengths_view_, lengths_.data(), setting_.stream);
}

void State::check(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents) const {
  const auto fail = [](const std::string& what) { throw Error(ErrorCode::invalid_argument, "gnmt.step", what); };
  const auto rows = static_cast<std::int64_t>(tokens.size());
  if (rows % beam_ != 0 || rows > sentences_ * beam_)
    fail("tokens: expected a multiple of " + std::to_string(beam_) + " up to " + std::to_string(sentences_ * beam_) + ", got " +
         std::to_string(rows));
  if (parents.size() != tokens.size())
    fail("parents: expected " + std::to_string(rows) + " values, got " + std::to_string(parents.size()));
  std::int64_t before = -1;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t parent = parents[static_cast<std::size_t>(r)], sentence = parent / beam_;
    if (parent < 0 || sentence >= sentences_)
      fail("parents: expected 0 ... " + std::to_string(sentences_ * beam_ - 1) + ", got " + std::to_string(parent));
    if (r % beam_ == 0 ? sentence <= before : sentence != before)
      fail("parents: expected rows of one sentence in each group of " + std::to_string(beam_) + ", sentences in order");
    before = sentence;
  }
}

/// Drops the keys and values of sentences that no row belongs to any more.
void State::keep_sentences(std::span<const std::int32_t> parents) {
  const std::int64_t kept = static_cast<std::int64_t>(parents.size()) / beam_;
  if (kept == sentences_) return;
  std::vector<std::int32_t> sentences(static_cast<std::size_t>(kept));
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    sentences[i] = static_cast<std::int32_t>(parents[i * static_cast<std::size_t>(beam_)] / beam_);
    lengths_[i] = lengths_[static_cast<std::size_t>(sentences[i])];
  }
  lengths_.resize(sentences.size());
  sentences_ = kept;
  const TensorView chosen = indices_.narrow(0, 0, kept);
  upload(chosen, sentences.data(), setting_.stream);
  upload(lengths_view_.narrow(0, 0, kept), lengths_.data(), setting_.stream);
  const std::int64_t all = key_value_.now.size(0), width = source_steps_ * 2 * setting_.model.hidden;
  gather_keys_.forward({.indices = chosen,
                        .table = key_value_.now.reshaped({all, width}),
                        .y = key_value_.next.reshaped({all, width}).narrow(0, 0, kept)},
                       workspace_, setting_.stream);
  std::swap(key_value_.now, key_value_.next);
}

/// Gives each row the state of its parent.
void State::take_over(std::span<const std::int32_t> parents) {
  const auto rows = static_cast<std::int64_t>(parents.size());
  bool same = true;
  for (std::int64_t r = 0; same && r < rows; ++r) same = parents[static_cast<std::size_t>(r)] == r;
  if (same) return;
  const TensorView chosen = indices_.narrow(0, 0, rows);
  upload(chosen, parents.data(), setting_.stream);
  const std::int64_t H = setting_.model.hidden;
  for (LayerState& layer : layers_)
    for (Rows* state : {&layer.h, &layer.c}) {
      gather_.forward({.indices = chosen,
                       .table = state->now.reshaped({most_rows_, H}),
                       .y = state->next.reshaped({most_rows_, H}).narrow(0, 0, rows)},
                      workspace_, setting_.stream);
      std::swap(state->now, state->next);
    }
}

void State::attend(std::int64_t rows) {
  const ModelDescription& model = setting_.model;
  const std::int64_t H = model.hidden, heads = model.heads();
  const auto grouped = [&](const TensorView& view) {  // [1, rows, H] -> [B, beam, heads, D]
    TensorView flat = view;
    flat.rank = 2;
    flat.shape = {rows, H}, flat.strides = {view.stride(1), view.stride(2)};
    return flat.split(0, sentences_, beam_).split(2, heads, H / heads);
  };
  const auto cached = [&](std::int64_t begin) {
    return key_value_.now.narrow(0, 0, sentences_).narrow(2, begin, H).split(2, heads, H / heads);
  };
  query_plan_.forward({.x = first(layers_[0].sum, rows),
                       .weight = setting_.parameters->query.weight,
                       .y = first(query_, rows),
                       .packed = query_plan_.packed_bytes() > 0 ? &query_packed_ : nullptr},
                      workspace_, setting_.stream);
  attention_.forward({.q = grouped(query_),
                      .k = cached(0),
                      .v = cached(H),
                      .o = grouped(joined_.narrow(2, H, H)),
                      .key_lengths = lengths_view_.narrow(0, 0, sentences_)},
                     workspace_, setting_.stream);
}

void State::run_layers(std::int64_t rows) {
  const std::int64_t H = setting_.model.hidden;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    LayerState& layer = layers_[l];
    if (l > 1) elementwise_.copy(first(layer.input, rows).narrow(2, H, H), first(joined_, rows).narrow(2, H, H));
    RecurrentForward run{.x = first(layer.input, rows),
                         .weights = setting_.parameters->decoder[l].values,
                         .y = first(layer.output, rows),
                         .hn = first(layer.h.next, rows),
                         .cn = first(layer.c.next, rows),
                         .packed = layer.plan.packed_bytes() > 0 ? &layer.packed : nullptr};
    if (fed_ > 0) run.h0 = first(layer.h.now, rows), run.c0 = first(layer.c.now, rows);
    layer.plan.forward(run, workspace_, setting_.stream);
    std::swap(layer.h.now, layer.h.next);
    std::swap(layer.c.now, layer.c.next);
    if (l >= 2) elementwise_.add(first(layer.sum, rows), first(layer.output, rows), first(layers_[l - 1].sum, rows));
    if (l == 0) attend(rows);
  }
}

ConstTensorView State::classify(std::int64_t rows) {
  const LinearWeights& classifier = setting_.parameters->classifier;
  const TensorView logits = logits_.narrow(0, 0, rows);
  const TensorView& top = layers_.size() == 1 ? joined_ : layers_.back().sum;
  classifier_plan_.forward({.x = first(top, rows),
                            .weight = classifier.weight,
                            .bias = classifier.bias,
                            .y = logits.split(0, 1, rows),
                            .packed = classifier_plan_.packed_bytes() > 0 ? &classifier_packed_ : nullptr},
                           workspace_, setting_.stream);
  softmax_.forward({.x = logits, .y = logits}, workspace_, setting_.stream);
  if (!narrow_plan_) return logits;
  narrow_plan_->run({.a = logits, .y = narrow_.narrow(0, 0, rows)}, workspace_, setting_.stream);
  return narrow_.narrow(0, 0, rows);
}

ConstTensorView State::step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents) {
  check(tokens, parents);
  const auto rows = static_cast<std::int64_t>(tokens.size());
  keep_sentences(parents);
  if (fed_ > 0) take_over(parents);
  const TensorView fed = indices_.narrow(0, 0, rows);
  upload(fed, tokens.data(), setting_.stream);
  embedding_.forward(
      {.indices = fed.split(0, 1, rows), .table = setting_.parameters->embedding, .y = first(layers_[0].input, rows)}, workspace_,
      setting_.stream);
  run_layers(rows);
  ++fed_;
  return classify(rows);
}

std::vector<LayerChoice> State::choices() const {
  std::vector<LayerChoice> out;
  for (std::size_t l = 0; l < layers_.size(); ++l)
    out.push_back({"decoder " + std::to_string(l) + " (recurrent, one step)", layers_[l].plan.explain()});
  out.push_back({"queries (linear, one step)", query_plan_.explain()});
  out.push_back({"attention (one step)", attention_.explain()});
  out.push_back({"classifier (linear, one step)", classifier_plan_.explain()});
  out.push_back({"log-probabilities (softmax)", softmax_.explain()});
  return out;
}

}  // namespace

std::unique_ptr<DecoderState> Model::start(const Batch& sources, std::int64_t beam) {
  check_batch("gnmt.start", sources, false);
  if (beam < 1) throw Error(ErrorCode::invalid_argument, "gnmt.start", "beam: expected 1 or more, got " + std::to_string(beam));
  const Pass& pass = impl_->forward(sources, {sources.source_steps, 0, sources.rows, false, false, true}, 0);
  auto state = std::make_unique<State>(impl_->decoding, sources.rows, sources.source_steps, beam);
  state->fill(pass.encoder.key_value, sources.source_lengths);
  state->pack();
  impl_->trained = {};
  impl_->choices = pass.choices();
  for (LayerChoice& choice : state->choices()) impl_->choices.push_back(std::move(choice));
  return state;
}

ConstTensorView Model::step(DecoderState& state, std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents) {
  auto* const own = dynamic_cast<State*>(&state);
  if (own == nullptr) throw Error(ErrorCode::invalid_argument, "gnmt.step", "state: expected one that start() made");
  return own->step(tokens, parents);
}

}  // namespace everglow::gnmt
