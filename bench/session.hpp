// What `everglow bench` and the program for cards have in common: which cases, which rows, records of them, and where these go.
#pragma once

#include "bench/measure.hpp"
#include "bench/record.hpp"

#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace everglow::bench {

struct Request {
  std::string layer{};        // empty: all
  std::string explicit_line;  // of a problem in place of the built-in cases
  Settings settings{};
  Timing timing{};
  std::string filter{}, tag{}, direction{}, out{};
  bool append = false;  // to the file `out`
  bool json = false;
};

/// Throws Error(invalid_argument, "bench").
[[noreturn]] void wrong(const std::string& what);

/// Opens the card of settings.device, and sets what follows from it. Throws Error(unsupported) that says what is missing.
void open_device(Settings& settings, Device device);

/// Twice the last cache, so that what one set left there is gone when its turn comes again; 64 ... 256 MiB.
std::int64_t rotation_of(const DeviceDescription& device);

/// The cases that a request names. Throws where there are none.
std::vector<cases::Case> chosen_cases(const Request& request);
std::string without_tags(const std::string& line);

/// The problem of a case with the rows and the directions that the request wants.
struct Chosen {
  Problem problem{};
  std::vector<std::size_t> directions{};
};
Chosen chosen_problem(const Request& request, const cases::Case& c);

/// Times all rows of one direction in turn.
std::vector<Record> records(const Request& request, const cases::Case& c, const Problem& problem, std::size_t direction);

/// A line for people: the device and what all records have in common.
std::string session_head(const Settings& settings);

/// Where the records of a request go: a table or lines of JSON on the standard output, and the file.
class Output {
 public:
  explicit Output(const Request& request);
  void begin(const cases::Case& c);
  void add(const std::vector<Record>& records);
  void keep(const std::vector<Record>& records);  // the file alone

 private:
  const Request& request_;
  std::ofstream file_;
  bool headed_ = false;
};

/// Says what is at work, and is told to go when something is printed.
struct Progress {
  std::function<void(std::int64_t done, const std::string& what)> show = [](std::int64_t, const std::string&) {};
  std::function<void()> erase = [] {};
};

void time_cases(const Request& request, const std::vector<cases::Case>& all, const Progress& progress);

}  // namespace everglow::bench
