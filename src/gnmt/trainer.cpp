// The training run: tokenizer, epochs of batches, optimiser steps, validation, checkpoints, and the final test of the best one.
#include <everglow/gnmt/bleu.hpp>
#include <everglow/gnmt/trainer.hpp>

#include "gnmt/batch_queue.hpp"
#include "gnmt/checkpoint.hpp"
#include "gnmt/hash.hpp"
#include "gnmt/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <future>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

namespace everglow::gnmt {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Error invalid(const std::string& what) { return {ErrorCode::invalid_argument, "train", what}; }

/// A hash over all pairs: tells whether a resume brings the text that the checkpoint was trained on.
std::uint64_t fingerprint(std::span<const Pair> pairs) {
  std::uint64_t hash = fnv1a_start;
  for (const Pair& pair : pairs) {
    hash = fnv1a("\t", fnv1a(pair.source, hash));
    hash = fnv1a("\n", fnv1a(pair.target, hash));
  }
  return hash;
}

/// Makes the folder of the checkpoints, and removes from it what a save left behind that was killed.
void prepare_folder(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw Error(ErrorCode::io, "train", fmt::format("{}: cannot make the folder: {}", folder.string(), failed.message()));
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with("last.safetensors.") || name.starts_with("best.safetensors.");
    if (ours && name.ends_with(".tmp")) std::filesystem::remove(entry.path(), failed);
  }
}

/// Whether all weights, which are f32, are numbers: loss and norm of the last step told only of the weights before it.
bool finite_weights(const Model& model) {
  std::vector<float> copied;
  for (const Parameter& parameter : model.parameters()) {
    const TensorView& view = parameter.value;
    const auto* values = static_cast<const float*>(view.data);
    if (view.device != Device::cpu()) {
      copied.resize(static_cast<std::size_t>(view.elements()));
      copy(TensorView(copied.data(), view.dtype, std::span(view.shape.data(), static_cast<std::size_t>(view.rank))), view);
      values = copied.data();
    }
    if (!std::all_of(values, values + view.elements(), [](float value) { return std::isfinite(value); })) return false;
  }
  return true;
}

void check_options(const TrainOptions& o, const TrainData& data) {
  const auto at_least = [](const char* option, double value, double least) {
    if (!(value >= least)) throw invalid(fmt::format("{}: expected at least {}, got {}", option, least, value));
  };
  if (o.out.empty()) throw invalid("out: expected a folder for the checkpoints, got none");
  at_least("layers", static_cast<double>(o.layers), 1);
  at_least("hidden", static_cast<double>(o.hidden), 1);
  at_least("vocabulary", static_cast<double>(o.vocabulary), 5);
  at_least("batch_tokens", static_cast<double>(o.batch_tokens), 1);
  at_least("warmup", static_cast<double>(o.warmup), 0);
  at_least("decay_start", o.decay_start, 0);
  at_least("clip", o.clip, 0);
  at_least("valid_every", static_cast<double>(o.valid_every), 0);
  at_least("valid_lines", static_cast<double>(o.valid_lines), 0);
  at_least("beam", static_cast<double>(o.beam), 1);
  if (!(o.dropout >= 0 && o.dropout < 1)) throw invalid(fmt::format("dropout: expected 0 <= p < 1, got {}", o.dropout));
  if (!(o.label_smoothing >= 0 && o.label_smoothing < 1))
    throw invalid(fmt::format("label_smoothing: expected 0 <= s < 1, got {}", o.label_smoothing));
  if (o.precision != DType::f32 && o.precision != DType::f16 && o.precision != DType::bf16)
    throw invalid(fmt::format("precision: expected f32, f16 or bf16, got {}", name(o.precision)));
  if (!(o.learning_rate > 0)) throw invalid(fmt::format("learning_rate: expected more than 0, got {}", o.learning_rate));
  if ((o.steps > 0) + (o.epochs > 0) + (o.minutes > 0) != 1 || o.steps < 0 || o.epochs < 0 || o.minutes < 0)
    throw invalid(fmt::format("expected exactly one of steps, epochs and minutes to be positive, got {}, {} and {}", o.steps,
                              o.epochs, o.minutes));
  if (data.train.empty()) throw invalid("expected at least one training pair, got none");
}

/// Throws where the options would not continue the run of the checkpoint.
void check_resume(const TrainState& was, const TrainState& now, const std::string& file) {
  const auto same = [&file](const char* option, auto expected, auto came) {
    if (expected != came)
      throw Error(
          ErrorCode::invalid_argument, "train.resume",
          fmt::format("{}: expected {} as in {}, got {}; choose another folder to start anew", option, expected, file, came));
  };
  same("layers", was.model.layers, now.model.layers);
  same("hidden", was.model.hidden, now.model.hidden);
  same("vocabulary", was.asked_vocabulary, now.asked_vocabulary);
  same("precision", name(was.model.dtype), name(now.model.dtype));
  same("batch_tokens", was.batch_tokens, now.batch_tokens);
  same("max_words", was.max_words, now.max_words);
  same("seed", was.seed, now.seed);
  same("count of training pairs", was.training_pairs, now.training_pairs);
  same("hash of the training text", fmt::format("{:016x}", was.training_hash), fmt::format("{:016x}", now.training_hash));
}

TrainState state_of(const TrainOptions& o, const TrainData& data) {
  TrainState state;
  state.model = {.hidden = o.hidden,
                 .layers = o.layers,
                 .vocabulary = 0,
                 .dropout = static_cast<float>(o.dropout),
                 .label_smoothing = static_cast<float>(o.label_smoothing),
                 .dtype = o.precision};
  state.asked_vocabulary = o.vocabulary;
  state.batch_tokens = o.batch_tokens;
  state.max_words = o.max_words;
  state.seed = o.seed;
  state.training_pairs = static_cast<std::int64_t>(data.train.size());
  state.training_hash = fingerprint(data.train);
  state.version = version();
  const DeviceDescription device(o.device);
  state.isa = device.isa;
  for (const BackendStatus& backend : backends())  // the card's name, and the version of what computes
    if (o.device.kind != DeviceKind::cpu && backend.name != "cpu")
      state.device += fmt::format("{}{}: {}", state.device.empty() ? device.name + "; " : "; ", backend.name, backend.reason);
  state.threads = o.plan.threads > 0 ? o.plan.threads : default_threads();
  return state;
}

Tokenizer train_tokenizer(std::span<const Pair> pairs, std::int64_t vocabulary) {
  std::vector<std::string> lines;
  lines.reserve(2 * pairs.size());
  for (const Pair& pair : pairs) lines.push_back(pair.source), lines.push_back(pair.target);
  return Tokenizer::train(lines, vocabulary);
}

/// Translations of pairs against their targets.
struct Score {
  double bleu = 0, exact = 0;
};

Score score(Model& model, const Tokenizer& tokenizer, std::span<const Pair> pairs, std::int64_t beam) {
  if (pairs.empty()) return {};
  std::vector<std::string> sources, targets;
  for (const Pair& pair : pairs) sources.push_back(pair.source), targets.push_back(pair.target);
  const SearchOptions search{.beam = beam, .batch_tokens = batch_tokens_of(model.optimizer_step().device.kind)};
  const std::vector<std::string> found = translate(model, tokenizer, sources, search);
  std::size_t exact = 0;
  for (std::size_t i = 0; i < found.size(); ++i) exact += found[i] == targets[i] ? 1 : 0;
  return {bleu(found, targets).score, 100.0 * static_cast<double>(exact) / static_cast<double>(found.size())};
}

class Trainer {
 public:
  Trainer(const TrainOptions& options, const TrainData& data, const std::function<void(const Progress&)>& report,
          const std::function<bool()>& stop)
      : options_(options),
        data_(data),
        report_(report),
        stop_(stop),
        last_((std::filesystem::path(options.out) / "last.safetensors").string()),
        best_((std::filesystem::path(options.out) / "best.safetensors").string()),
        state_(state_of(options, data)) {}

  TrainResult run() {
    open();
    bool stopped = false;
    while (!stopped && !finished()) stopped = epoch();
    take(true);
    remember_choices();
    if (stopped || state_.validated_step == state_.step)
      save(last_);
    else
      validate();
    return result(stopped);
  }

 private:
  struct Window {  // what is summed between two reports
    double loss = 0, norm = 0, rate = 0;
    std::int64_t targets = 0, tokens = 0, positions = 0;
    double seconds = 0;
    Clock::time_point begin = Clock::now();
  };

  RunLength length() const { return {options_.steps, options_.epochs, options_.minutes}; }
  RunPosition position() const {
    const double epoch_part = batches_ > 0 ? static_cast<double>(state_.position) / static_cast<double>(batches_) : 0;
    return {state_.step, state_.epoch, epoch_part, state_.seconds};
  }
  bool exact_enough() const {
    return options_.until_exact > 0 && state_.best_step >= 0 && state_.best_exact >= options_.until_exact;
  }
  bool over() const { return exact_enough() || part_of_run(length(), position()) >= 1; }
  /// A step that is still on its way may turn out not to count.
  bool finished() {
    if (!over()) return false;
    take(true);
    return over();
  }
  bool on_card() const { return options_.device.kind != DeviceKind::cpu; }
  /// Steps begun, skipped ones too: what the masks of dropout and the times of validations go by.
  std::int64_t begun() const { return state_.step + state_.skipped; }

  void open() {
    prepare_folder(options_.out);
    if (std::filesystem::exists(last_)) {
      const Checkpoint checkpoint(last_);
      check_resume(checkpoint.state(), state_, last_);
      const TrainState now = std::exchange(state_, checkpoint.state());
      state_.version = now.version, state_.isa = now.isa, state_.threads = now.threads, state_.device = now.device;
      state_.model.dropout = now.model.dropout, state_.model.label_smoothing = now.model.label_smoothing;
      tokenizer_ = checkpoint.tokenizer();
      model_.emplace(state_.model, options_.device, options_.plan);
      checkpoint.restore(*model_);
      for (const auto& [layer, kernel] : state_.kernels) choices_.push_back({layer, {.kernel = kernel}});
    } else {
      tokenizer_ = train_tokenizer(data_.train, options_.vocabulary);
      state_.model.vocabulary = tokenizer_->vocabulary();
      model_.emplace(state_.model, options_.device, options_.plan);
      model_->initialise(options_.seed);
    }
    train_ = encode(*tokenizer_, data_.train, options_.plan.threads);
    const std::vector<Example> valid = encode(*tokenizer_, data_.valid, options_.plan.threads);
    for (const std::vector<std::int64_t>& batch : make_epoch(valid, options_.batch_tokens, 0))
      valid_.push_back(make_batch(valid, batch));
    seconds_before_ = state_.seconds, steps_before_ = state_.step, told_ = begun();
    begin_ = Clock::now();
    window_ = {};
    order_ = order_of(state_.epoch);
    batches_ = static_cast<std::int64_t>(order_.size());
    part_before_ = part_of_run(length(), position());
  }

  using Order = BatchQueue::Order;
  Order order_of(std::int64_t epoch) const {
    return make_epoch(train_, options_.batch_tokens, options_.seed + static_cast<std::uint64_t>(epoch));
  }

  /// Goes on in the epoch that is running; true where `stop` said so.
  bool epoch() {
    const Order order = order_.empty() ? order_of(state_.epoch) : std::exchange(order_, {});
    batches_ = static_cast<std::int64_t>(order.size());
    std::optional<BatchQueue> queue;  // the CPU's own threads are all at work on the step
    std::future<Order> following;
    if (on_card()) {
      reserve(order);
      queue.emplace(train_, order, state_.position);
      following = std::async(std::launch::async, [this, next = state_.epoch + 1] { return order_of(next); });
    }
    while (state_.position < batches_) {
      if (finished()) return false;
      if (stop_ && stop_()) return true;
      step(queue ? queue->next() : make_batch(train_, order[static_cast<std::size_t>(state_.position)]));
      if (options_.valid_every > 0 && begun() % options_.valid_every == 0) validate();
    }
    if (following.valid()) order_ = following.get();
    ++state_.epoch;
    state_.position = 0;
    if (options_.valid_every == 0) validate();
    return false;
  }

  void reserve(const Order& order) {
    std::vector<BatchSizes> sizes;
    const auto steps = [](const std::vector<std::int32_t>& side) { return static_cast<std::int64_t>(side.size()) + 1; };
    for (const std::vector<std::int64_t>& batch : order) {
      BatchSizes& size = sizes.emplace_back(BatchSizes{.rows = static_cast<std::int64_t>(batch.size())});
      for (const std::int64_t index : batch) {
        const Example& example = train_[static_cast<std::size_t>(index)];
        size.source_steps = std::max(size.source_steps, steps(example.source));
        size.target_steps = std::max(size.target_steps, steps(example.target));
      }
    }
    model_->reserve(sizes);
  }

  /// The rate of the next step, and those for the case that steps on their way are skipped.
  std::vector<double> rates() const {
    const Schedule schedule{options_.learning_rate, options_.warmup, options_.decay_start};
    std::vector<double> out;
    const std::int64_t cases = options_.precision == DType::f16 ? most_steps_ahead + 1 : 1;
    for (std::int64_t skipped = 0; skipped < cases; ++skipped) {
      RunPosition then = position();
      then.step = std::max<std::int64_t>(then.step - skipped, 0);
      out.push_back(rate_at(schedule, then.step, part_of_run(length(), then)));
    }
    return out;
  }

  void step(const Batch& batch) {
    const std::vector<double> rates = this->rates();
    model_->train_step(batch,
                       {.seed = options_.seed, .step = static_cast<std::uint64_t>(begun()), .clip = options_.clip, .rates = rates});
    trained_ = true;
    window_.rate = rates[0];
    if (!on_card()) take(true);
    ++state_.step;
    ++state_.position;
    state_.tokens += batch.source_tokens + batch.target_tokens;
    state_.seconds = seconds_before_ + since(begin_);
    window_.tokens += batch.source_tokens + batch.target_tokens;
    window_.positions += batch.rows * (batch.source_steps + batch.target_steps);
    if (on_card()) take(false);
    window_.seconds = since(window_.begin);
    if (window_.seconds >= 1) report();
  }

  /// What steps came to: of those that are done, or with `wait` of all.
  void take(bool wait) {
    for (const StepResult& result : model_->take_results(wait)) {
      if (!std::isfinite(result.loss.loss)) throw diverged("loss");
      if (result.skipped) {
        // A gradient that overflows at any scale is none.
        if (options_.precision != DType::f16 || result.loss_scale < 0x1p-20) throw diverged("norm of the gradient");
        --state_.step;
        ++state_.skipped;
      } else {
        window_.norm = result.norm;
      }
      ++told_;
      loss_scale_ = options_.precision == DType::f16 ? result.loss_scale : 0;
      window_.loss += result.loss.loss;
      window_.targets += result.loss.tokens;
    }
  }

  Error diverged(const char* what) const {
    return invalid(
        fmt::format("expected a finite {} in step {}, got infinity or NaN: the run diverged; lower the learning rate ({}) or "
                    "lengthen the warm-up ({}); {} still holds the last good checkpoint where one was saved",
                    what, told_, options_.learning_rate, options_.warmup, options_.out));
  }

  Progress progress() const {
    // A validation that follows a report at once has no step of its own to tell of.
    const Window& w = window_.tokens > 0 ? window_ : reported_;
    Progress p;
    p.epoch = state_.position > 0 ? state_.epoch + 1 : std::max<std::int64_t>(state_.epoch, 1);  // the one that just ended counts
    p.step = state_.step;
    p.part = part_of_run(length(), position());
    p.loss = w.targets > 0 ? w.loss / static_cast<double>(w.targets) : 0;
    p.tokens_per_second = w.seconds > 0 ? static_cast<double>(w.tokens) / w.seconds : 0;
    p.padding = w.positions > 0 ? 1 - static_cast<double>(w.tokens) / static_cast<double>(w.positions) : 0;
    p.gradient_norm = w.norm;
    p.learning_rate = w.rate;
    p.seconds = state_.seconds;
    p.loss_scale = loss_scale_;
    p.skipped = state_.skipped;
    p.seconds_left = seconds_left(length(), position(), part_before_, since(begin_));
    return p;
  }

  void report() {
    if (report_) report_(progress());
    reported_ = window_;
    window_ = {};
  }

  /// Measures on the validation part, keeps the best, and saves.
  void validate() {
    take(true);
    Progress p = progress();
    remember_choices();
    LossSum sum;
    for (const Batch& batch : valid_) {
      const LossSum part = model_->evaluate(batch);
      sum.loss += part.loss;
      sum.tokens += part.tokens;
    }
    if (!std::isfinite(sum.loss)) throw diverged("validation loss");
    const std::size_t lines = std::min(data_.valid.size(), static_cast<std::size_t>(options_.valid_lines));
    const Score found = score(*model_, *tokenizer_, std::span(data_.valid).first(lines), 1);
    p.validated = true;
    p.valid_lines = static_cast<std::int64_t>(lines);
    p.valid_loss = sum.tokens > 0 ? sum.loss / static_cast<double>(sum.tokens) : 0;
    p.valid_bleu = found.bleu;
    p.valid_exact = found.exact;
    state_.seconds = seconds_before_ + since(begin_);
    p.seconds = state_.seconds;
    state_.validated_step = state_.step;
    if (better(p)) {
      state_.best_step = state_.step;
      state_.best_bleu = p.valid_bleu, state_.best_exact = p.valid_exact, state_.best_loss = p.valid_loss;
      save(best_);  // before `last`: after a crash in between, the resumed run finds the same best again
    }
    save(last_);
    if (report_) report_(p);
    window_ = {};
  }

  bool better(const Progress& p) const {
    if (state_.best_step < 0 || data_.valid.empty()) return true;  // nothing to compare: the last is the best
    const double now = options_.until_exact > 0 ? p.valid_exact : p.valid_bleu;
    const double was = options_.until_exact > 0 ? state_.best_exact : state_.best_bleu;
    return std::tuple(now, -p.valid_loss) > std::tuple(was, -state_.best_loss);
  }

  /// Keeps what the last training batch ran. A validation leaves the rows of decoding, and a run that was over runs nothing: then
  /// what is kept stays.
  void remember_choices() {
    if (!std::exchange(trained_, false)) return;
    choices_ = model_->choices();
    state_.kernels.clear();
    for (const LayerChoice& choice : choices_) state_.kernels.emplace_back(choice.layer, choice.explanation.kernel);
  }

  void save(const std::string& file) {
    if (!finite_weights(*model_)) throw diverged("weight");
    save_checkpoint(file, *model_, *tokenizer_, state_);
  }

  TrainResult result(bool stopped) {
    TrainResult result;
    result.steps = state_.step;
    result.new_steps = state_.step - steps_before_;
    result.epochs = state_.epoch;
    result.seconds = state_.seconds;
    result.tokens = state_.tokens;
    result.interrupted = stopped;
    result.choices = choices_;
    if (stopped || data_.test.empty()) return result;
    Checkpoint(best_).restore(*model_);
    const Score found = score(*model_, *tokenizer_, data_.test, options_.beam);
    result.test_bleu = found.bleu;
    result.test_exact = found.exact;
    result.test_lines = static_cast<std::int64_t>(data_.test.size());
    return result;
  }

  const TrainOptions& options_;
  const TrainData& data_;
  const std::function<void(const Progress&)>& report_;
  const std::function<bool()>& stop_;
  std::string last_, best_;
  TrainState state_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<Model> model_;
  std::vector<Example> train_;
  std::vector<Batch> valid_;
  std::vector<LayerChoice> choices_;
  bool trained_ = false;      // the model's own choices are those of a training batch
  std::int64_t batches_ = 0;  // of the epoch that is running
  double seconds_before_ = 0, part_before_ = 0;
  std::int64_t steps_before_ = 0, told_ = 0;  // told_: steps whose results were taken
  double loss_scale_ = 0;
  Order order_;  // of the epoch that is next, where it is known
  Clock::time_point begin_ = Clock::now();
  Window window_;
  Window reported_;  // the last one that held steps
};

std::string checkpoint_in(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return path;
  for (const char* name : {"best.safetensors", "last.safetensors"}) {
    const std::filesystem::path file = std::filesystem::path(path) / name;
    if (std::filesystem::exists(file)) return file.string();
  }
  throw Error(ErrorCode::io, "checkpoint",
              fmt::format("{}: expected best.safetensors or last.safetensors in this folder, got neither", path));
}

}  // namespace

TrainResult train(const TrainOptions& options, const TrainData& data, const std::function<void(const Progress&)>& report,
                  const std::function<bool()>& stop) {
  check_options(options, data);
  return Trainer(options, data, report, stop).run();
}

LoadedModel load_model(const std::string& path, Device device, const PlanOptions& options) {
  const Checkpoint checkpoint(checkpoint_in(path));
  LoadedModel loaded{Model(checkpoint.state().model, device, options), checkpoint.tokenizer(), to_json(checkpoint.state())};
  checkpoint.restore(loaded.model);
  return loaded;
}

}  // namespace everglow::gnmt
