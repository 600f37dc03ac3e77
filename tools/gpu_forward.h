// Commands that need GPUs: `dbo` starts `dbo-gpu` for them.
#pragma once

#include <string>

namespace dbo {

/// The path of `dbo-gpu`: beside this program, or beside it in a build folder, or on PATH. Empty when there is none.
std::string find_dbo_gpu();

/// Replaces this process by `dbo-gpu` with the same arguments. Throws InputError that says plainly what is missing and
/// how to get it when there is no such program or it cannot start.
int forward_to_gpu(int argc, char** argv);

}  // namespace dbo
