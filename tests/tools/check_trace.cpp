// check_trace FILE: prints what breaks the rules of our Chrome traces; exit 1 when something does.
#include <cstdio>

#include "sim/base/files.h"
#include "traces/chrome_check.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto findings = dbo::check_chrome_trace(dbo::read_file(argv[1]));
  std::fputs(dbo::findings_text(findings).c_str(), stdout);
  return findings.empty() ? 0 : 1;
}
