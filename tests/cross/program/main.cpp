// Proves the cases with a tag on every row of this processor that takes them. Exits with 1 where a row is wrong or a layer has no
// row of its own.
#include "cases/proof/proof.hpp"

#include <everglow/everglow.hpp>

#include <cstdio>
#include <map>
#include <string>

int main(int count, char** arguments) {
  using namespace everglow;
  if (count != 2) {
    std::fprintf(stderr, "usage: %s TAG\n", arguments[0]);
    return 2;
  }
  const DeviceDescription cpu = Device::cpu();
  std::printf("%s, rows for %s\n", cpu.name.c_str(), cpu.isa.c_str());
  int faults = cpu.isa == "portable" ? 0 : 1;
  std::map<std::string, int> proved;
  for (const auto& c : cases::tagged(arguments[1])) {
    const auto proof = proof::make_proof(c);
    for (const std::string& row : proof::accepting_rows(*proof)) {
      ++proved[row];
      for (const auto& finding : proof->run({.threads = 2, .force = row})) {
        if (finding.fault.empty()) continue;
        std::printf("%s: %s, %s %s: %s\n", c.line.c_str(), row.c_str(), finding.direction.c_str(), finding.tensor.c_str(),
                    finding.fault.c_str());
        ++faults;
      }
    }
  }
  for (const char* layer : {"linear", "recurrent", "attention", "softmax", "embedding", "loss", "pointwise", "adam"})
    for (const std::string& row : kernels(layer, DeviceKind::cpu)) {
      std::printf("%-28s %4d cases\n", row.c_str(), proved[row]);
      if (proved[row] == 0 && !row.starts_with("onednn.")) ++faults;
    }
  std::printf("%d faults\n", faults);
  return faults == 0 ? 0 : 1;
}
