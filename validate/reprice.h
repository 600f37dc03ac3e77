// What earlier runs of `validate` measured, priced again: by other profiles or a newer cost model, without a GPU.
#pragma once

#include <string>
#include <vector>

#include "validate/outcome.h"
#include "validate/suite.h"

namespace dbo::validate {

struct RepriceOptions {
  std::vector<std::string> profiles;  ///< of several that of the config's model is taken; none: the cost model alone
  std::string program;                ///< name and version of this program, for notes
  std::string out;                    ///< folder for what a run leaves; empty: none
  bool brief = false;                 ///< as ValidateOptions'
};

/// The outcome that a replay which measured what `folder` holds has with today's prediction. Runs before measured.json
/// was kept lack traces of all but the split step's first way: its op kinds, windows and order are judged, of the rest
/// the steps alone, and a note says so. One that failed comes back as it is. Throws InputError when the folder has no
/// outcome, or one of another plan; `options.out` must not be in it.
Outcome reprice_config(const Config& config, const std::string& name, const std::string& folder,
                       const RepriceOptions& options);

struct RepricedSuite {
  std::vector<Outcome> outcomes;     ///< in the suite's order
  std::vector<std::string> lacking;  ///< names of configs that the folder has no outcome of
};

/// Every config of the suite that a run left an outcome of in `folder`, with the suite's tables in `options.out` if
/// that is set. Throws as reprice_config, and for configs that a profile was itself measured on.
RepricedSuite reprice_suite(const Suite& suite, const std::string& folder, const RepriceOptions& options);

}  // namespace dbo::validate
