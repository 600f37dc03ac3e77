// A data file that the build put into the binary (tools/embed_data.py).
#pragma once

#include <string_view>

namespace dbo {

struct DataFile {
  std::string_view name;  ///< the file's stem
  std::string_view text;
};

}  // namespace dbo
