#include "sim/base/files.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "sim/base/error.h"
#include "tests/traces/temp_dir.h"

namespace dbo {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

std::size_t entries(const std::string& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

TEST_CASE("a FIFO is written into and stays a FIFO") {
  const TempDir dir;
  const std::string path = dir.file("fifo");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  fs::create_symlink("fifo", dir.file("link"));
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  write_file(path, "one ");
  write_file(dir.file("link"), "two");
  char got[16] = {};
  CHECK(::read(reader, got, sizeof got) == 7);
  CHECK(std::string(got) == "one two");
  ::close(reader);
  CHECK(fs::is_fifo(path));
  CHECK(fs::is_symlink(dir.file("link")));
}

TEST_CASE("a link is followed to the file, there or not, and stays a link") {
  const TempDir dir;
  fs::create_directory(dir.file("sub"));
  write_file(dir.file("sub/real"), "old");
  fs::create_symlink("sub/real", dir.file("link"));
  fs::create_symlink("link", dir.file("chain"));
  fs::create_symlink("sub/new", dir.file("dangling"));
  write_file(dir.file("chain"), "new");
  write_file(dir.file("dangling"), "made");
  CHECK(read_file(dir.file("sub/real")) == "new");
  CHECK(read_file(dir.file("sub/new")) == "made");
  for (const char* name : {"link", "chain", "dangling"}) CHECK(fs::is_symlink(dir.file(name)));
  fs::create_symlink("loop", dir.file("loop"));
  CHECK_THROWS_AS(write_file(dir.file("loop"), "x"), InputError);
  CHECK(entries(dir.file("sub")) == 2);
}

TEST_CASE("an existing file keeps its permissions") {
  const TempDir dir;
  write_file(dir.file("f"), "old");
  REQUIRE(::chmod(dir.file("f").c_str(), 0640) == 0);
  write_file(dir.file("f"), "new");
  CHECK(fs::status(dir.file("f")).permissions() == fs::perms{0640});
}

TEST_CASE("- and a name of standard output's file are standard output") {
  const TempDir dir;
  const int saved = ::dup(STDOUT_FILENO);
  std::fflush(stdout);
  const int fd = ::open(dir.file("out").c_str(), O_WRONLY | O_CREAT, 0644);
  ::dup2(fd, STDOUT_FILENO);
  std::printf("a");
  write_file("-", "b");
  write_file(dir.file("out"), "c");
  std::printf("d");
  std::fflush(stdout);
  ::dup2(saved, STDOUT_FILENO);
  ::close(saved);
  ::close(fd);
  CHECK(read_file(dir.file("out")) == "abcd");
  CHECK(entries(dir.file("")) == 1);
}

TEST_CASE("a folder is not written to") {
  const TempDir dir;
  fs::create_directory(dir.file("sub"));
  CHECK_THROWS_AS(write_file(dir.file("sub"), "x"), InputError);
  CHECK(entries(dir.file("")) == 1);
}

TEST_CASE("a set that fails leaves every file as it was") {
  const TempDir dir;
  write_file(dir.file("a"), "old a");
  write_file(dir.file("b"), "old b");
  const auto second_run = [&] {
    FileSet files;
    files.write(dir.file("a"), "new a");
    files.write(dir.file("none/b"), "new b");
    files.commit();
  };
  CHECK_THROWS_AS(second_run(), InputError);
  CHECK(read_file(dir.file("a")) == "old a");
  CHECK(entries(dir.file("")) == 2);
  FileSet files;
  files.write(dir.file("a"), "new a");
  files.write(dir.file("b"), "new b");
  CHECK(read_file(dir.file("a")) == "old a");
  files.commit();
  CHECK(read_file(dir.file("a")) == "new a");
  CHECK(read_file(dir.file("b")) == "new b");
  CHECK(entries(dir.file("")) == 2);
}

}  // namespace
}  // namespace dbo
