// The support table: which rows of a layer serve which option in which dtype, counted over cases. Options are the keys of case
// lines that are no sizes.
#pragma once

#include "cases/case.hpp"

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::cli {

enum class Answer { declined, accepted, proved, failed };

class Support {
 public:
  /// What a row did with a case, or would do with it in another dtype.
  void note(const cases::Case& c, std::string_view dtype, std::string_view row, Answer answer);

  std::string text() const;      ///< for a terminal of 100 columns
  std::string markdown() const;  ///< a table for each layer
  nlohmann::json json() const;   ///< a list of {layer, option, row, dtypes}

 private:
  struct Count {
    int asked = 0, accepted = 0, proved = 0;
  };
  using Dtypes = std::map<std::string, Count>;
  using Rows = std::map<std::string, Dtypes, std::less<>>;
  using Options = std::map<std::string, Rows>;
  static std::string cell(const Options& options, const std::string& option, std::string_view row);
  std::map<std::string, Options, std::less<>> layers_;
};

/// The same problem with no size above `most`.
cases::Case at_most(cases::Case c, std::int64_t most);
/// "lengths", "activation=relu", "size 0", or "plain" alone where a case has no option.
std::vector<std::string> options_of(const cases::Case& c);

}  // namespace everglow::cli
