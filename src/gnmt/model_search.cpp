// Beam search. Sentences of like length are decoded together; a sentence that is done leaves its batch, so that no step works for
// it.
#include <everglow/gnmt/translate.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace everglow::gnmt {
namespace {

constexpr double impossible = -std::numeric_limits<double>::infinity();

/// A way to go on: row `row` of the sentence's beam with one more piece.
struct Candidate {
  double score = impossible;  // sum of log-probabilities
  std::int32_t row = 0, token = 0;
};

/// The best candidates so far, best first; equals stay in the order they came in, which is that of rows and pieces.
class Best {
 public:
  explicit Best(std::size_t most) : most_(most) { list_.reserve(most + 1); }
  void clear() { list_.clear(); }
  const std::vector<Candidate>& list() const { return list_; }
  /// What a candidate must exceed to enter.
  double threshold() const { return list_.size() < most_ ? impossible : list_.back().score; }
  void offer(const Candidate& candidate) {
    if (!(candidate.score > threshold())) return;
    const auto place = std::upper_bound(list_.begin(), list_.end(), candidate,
                                        [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    list_.insert(place, candidate);
    if (list_.size() > most_) list_.pop_back();
  }

 private:
  std::size_t most_;
  std::vector<Candidate> list_;
};

/// Offers all pieces of one row. Blocks whose largest log-probability cannot enter are passed over after one vectorised sweep.
void offer_row(Best& best, const float* log_probabilities, std::int64_t vocabulary, double score, std::int32_t row) {
  constexpr std::int64_t block = 64;
  for (std::int64_t begin = 0; begin < vocabulary; begin += block) {
    const std::int64_t end = std::min(begin + block, vocabulary);
    float largest = log_probabilities[begin];
    for (std::int64_t i = begin; i < end; ++i) largest = log_probabilities[i] > largest ? log_probabilities[i] : largest;
    // A NaN at the block's begin compares false here and leaves the block to offer(), which refuses each NaN alone.
    if (score + static_cast<double>(largest) <= best.threshold()) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto token = static_cast<std::int32_t>(i);
      if (token != pad_id && token != bos_id) best.offer({score + static_cast<double>(log_probabilities[i]), row, token});
    }
  }
}

/// A piece of a hypothesis and the piece before it.
struct Link {
  std::int32_t token, before;
};

struct Hypothesis {
  double score = impossible;
  std::int32_t last = -1;  // index of its last link; -1: none
};

/// The search of one sentence.
class Sentence {
 public:
  Sentence(std::size_t index, std::int64_t most_pieces, std::int64_t beam) : index(index), most_pieces_(most_pieces) {
    live.resize(static_cast<std::size_t>(beam));
    live[0].score = 0;  // all rows are alike before the first piece: one of them speaks for all
  }

  /// Takes one step's log-probabilities [beam, V]; sets `live`, `parents` and `tokens` of the next step.
  void advance(const float* log_probabilities, std::int64_t vocabulary, const SearchOptions& options, Best& best);
  bool done() const { return done_; }
  std::vector<std::int32_t> result() const;

  std::size_t index;  // of the source
  std::vector<Hypothesis> live;
  std::vector<std::int32_t> parents, tokens;  // rows of this sentence, 0 ... beam - 1

 private:
  void finish(const Candidate& candidate, double penalty);
  void keep(const Candidate& candidate);

  std::int64_t most_pieces_;
  std::int64_t pieces_ = 0;  // of the live hypotheses
  std::vector<Link> links_;
  std::vector<Hypothesis> previous_;
  Hypothesis finished_;  // the best one; its score is the normalised one
  bool ended_ = false;   // there is one
  bool done_ = false;
};

double length_penalty(std::int64_t length, double alpha) { return std::pow((5 + static_cast<double>(length)) / 6, alpha); }

void Sentence::finish(const Candidate& candidate, double penalty) {
  const double score = candidate.score / penalty;
  if (!ended_ || score > finished_.score) finished_ = {score, previous_[static_cast<std::size_t>(candidate.row)].last};
  ended_ = true;
}

void Sentence::keep(const Candidate& candidate) {
  links_.push_back({candidate.token, previous_[static_cast<std::size_t>(candidate.row)].last});
  live.push_back({candidate.score, static_cast<std::int32_t>(links_.size() - 1)});
  parents.push_back(candidate.row);
  tokens.push_back(candidate.token);
}

void Sentence::advance(const float* log_probabilities, std::int64_t vocabulary, const SearchOptions& options, Best& best) {
  const std::size_t beam = live.size();
  std::swap(previous_, live);
  live.clear(), parents.clear(), tokens.clear();
  best.clear();
  const bool must_end = pieces_ >= most_pieces_;
  for (std::size_t r = 0; r < beam; ++r) {
    if (previous_[r].score == impossible) continue;
    const auto row = static_cast<std::int32_t>(r);
    const float* const of_row = log_probabilities + static_cast<std::int64_t>(r) * vocabulary;
    if (must_end)
      best.offer({previous_[r].score + static_cast<double>(of_row[eos_id]), row, eos_id});
    else
      offer_row(best, of_row, vocabulary, previous_[r].score, row);
  }
  // An end counts only among the first `beam` candidates; the list has twice as many, so `beam` others are always there to go on.
  const double penalty = length_penalty(pieces_ + 1, options.length_penalty);
  for (std::size_t i = 0; i < best.list().size() && live.size() < beam; ++i) {
    const Candidate& candidate = best.list()[i];
    if (candidate.token != eos_id)
      keep(candidate);
    else if (i < beam)
      finish(candidate, penalty);
  }
  ++pieces_;
  // A live hypothesis only loses by growing; the largest penalty is the best it can hope for. The search ends when none can win any
  // more, not when `beam` hypotheses have ended: unlikely short ones end first, and would stop the likely long one.
  const double hope =
      live.empty() ? impossible : live[0].score / length_penalty(most_pieces_ + 1, std::max(options.length_penalty, 0.0));
  done_ = live.empty() || (ended_ && finished_.score >= hope);
  while (live.size() < beam) live.push_back({}), parents.push_back(0), tokens.push_back(eos_id);  // rows that no hypothesis uses
}

std::vector<std::int32_t> Sentence::result() const {
  std::vector<std::int32_t> pieces;
  for (std::int32_t link = finished_.last; link >= 0; link = links_[static_cast<std::size_t>(link)].before)
    pieces.push_back(links_[static_cast<std::size_t>(link)].token);
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

/// The log-probabilities on the host; memory of the CPU is read where it lies.
const float* on_host(const ConstTensorView& view, Buffer& copied) {
  if (view.device.kind == DeviceKind::cpu) return static_cast<const float*>(view.data);
  const std::size_t bytes = static_cast<std::size_t>(view.elements()) * sizeof(float);
  if (copied.bytes() < bytes) copied = Buffer::on_host(bytes, view.device);
  const Stream stream{view.device};  // in order with the model's own
  copy(TensorView(copied.data(), DType::f32, {view.size(0), view.size(1)}), view, stream);
  stream.synchronize();
  return static_cast<const float*>(copied.data());
}

/// Decodes the sources `indices` together.
void search_batch(Model& model, std::span<const std::vector<std::int32_t>> sources, std::span<const std::size_t> indices,
                  const SearchOptions& options, Buffer& copied, std::vector<std::vector<std::int32_t>>& results) {
  const std::int64_t beam = options.beam;
  std::vector<std::vector<std::int32_t>> chosen;
  std::vector<Sentence> sentences;
  for (const std::size_t i : indices) {
    chosen.push_back(sources[i]);
    const auto length = static_cast<std::int64_t>(sources[i].size());
    sentences.emplace_back(i, options.max_length > 0 ? options.max_length : 2 * length + 10, beam);
  }
  const std::unique_ptr<DecoderState> state = model.start(make_source_batch(chosen), beam);
  std::vector<std::int32_t> tokens(sentences.size() * static_cast<std::size_t>(beam), bos_id), parents(tokens.size());
  std::iota(parents.begin(), parents.end(), 0);
  Best best(2 * static_cast<std::size_t>(beam));
  while (!sentences.empty()) {
    const ConstTensorView view = model.step(*state, tokens, parents);
    const float* const log_probabilities = on_host(view, copied);
    const std::int64_t vocabulary = view.size(1);
    tokens.clear(), parents.clear();
    std::size_t kept = 0;
    for (std::size_t s = 0; s < sentences.size(); ++s) {
      Sentence& sentence = sentences[s];
      const auto first_row = static_cast<std::int64_t>(s) * beam;
      sentence.advance(log_probabilities + first_row * vocabulary, vocabulary, options, best);
      if (sentence.done()) {
        results[sentence.index] = sentence.result();
        continue;
      }
      tokens.insert(tokens.end(), sentence.tokens.begin(), sentence.tokens.end());
      for (const std::int32_t parent : sentence.parents) parents.push_back(static_cast<std::int32_t>(first_row) + parent);
      if (kept != s) sentences[kept] = std::move(sentence);
      ++kept;
    }
    sentences.erase(sentences.begin() + static_cast<std::ptrdiff_t>(kept), sentences.end());
  }
}

}  // namespace

std::vector<std::vector<std::int32_t>> search(Model& model, std::span<const std::vector<std::int32_t>> sources,
                                              const SearchOptions& options) {
  const auto fail = [](const std::string& what) { throw Error(ErrorCode::invalid_argument, "gnmt.search", what); };
  if (options.beam < 1) fail("beam: expected 1 or more, got " + std::to_string(options.beam));
  if (options.max_length < 0) fail("max_length: expected 0 or more, got " + std::to_string(options.max_length));
  if (options.batch_tokens < 1) fail("batch_tokens: expected 1 or more, got " + std::to_string(options.batch_tokens));
  if (!std::isfinite(options.length_penalty))
    fail("length_penalty: expected a finite number, got " + std::to_string(options.length_penalty));
  std::vector<std::vector<std::int32_t>> results(sources.size());
  Buffer copied;  // the log-probabilities of a step on a card
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (!sources[i].empty()) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sources[a].size() < sources[b].size(); });
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    const auto fits = [&](std::size_t last) {  // the longest source stands last; its end counts as a piece
      const auto steps = static_cast<std::int64_t>(sources[order[last]].size()) + 1;
      return static_cast<std::int64_t>(last - begin + 1) * options.beam * steps <= options.batch_tokens;
    };
    while (end < order.size() && fits(end)) ++end;
    search_batch(model, sources, std::span(order).subspan(begin, end - begin), options, copied, results);
    begin = end;
  }
  return results;
}

}  // namespace everglow::gnmt
