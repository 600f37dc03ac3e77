// Whole files in and out.
#pragma once

#include <string>
#include <string_view>

namespace dbo {

/// The whole content. Throws InputError naming the file and the system's reason.
std::string read_file(const std::string& path);

/// Writes through a temporary file beside `path` and a rename, so that a reader never sees half a file and a failure
/// leaves the old one. Throws InputError naming the file and the reason.
void write_file(const std::string& path, std::string_view content);

/// Creates the folder and those above it. Throws InputError when that fails or something else is there.
void make_folder(const std::string& path);

}  // namespace dbo
