// The workload: a rule, explicit ranks, or a sequence of steps.
#include <string>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/config/readers.h"

namespace dbo {
namespace {

/// More would be a typing error that fills the memory before anything fails.
constexpr std::int64_t kMaxRequests = std::int64_t{1} << 22;

std::vector<std::int64_t> read_blocks(const JsonRef& ref, const Request& request, std::int64_t block_size) {
  std::vector<std::int64_t> blocks = ref.integers(0, std::int64_t{1} << 53);
  const std::int64_t needed = (request.seq + block_size - 1) / block_size;
  if (static_cast<std::int64_t>(blocks.size()) < needed)
    ref.fail("must list at least " + std::to_string(needed) + " blocks of " + std::to_string(block_size) +
             " tokens for a seq of " + std::to_string(request.seq) + ", lists " + std::to_string(blocks.size()));
  return blocks;
}

void read_request(const JsonRef& ref, std::int64_t block_size, RankBatch& batch) {
  ObjectReader reader(ref, "an object that describes a request");
  for (const std::string_view key : {"query", "seq"}) reader.find(key);
  const auto blocks = reader.find("blocks");
  const auto repeated = reader.find("count");
  reader.done();
  const JsonRef query = reader.require("query");
  const JsonRef seq = reader.require("seq");
  Request request;
  request.query = query.integer(1, kMaxTokens);
  request.seq = seq.integer(1, kMaxTokens);
  if (request.query > request.seq)
    query.fail("must be at most seq (" + std::to_string(request.seq) +
               "), which counts the tokens of this step too, is " + std::to_string(request.query));
  if (blocks) request.blocks = read_blocks(*blocks, request, block_size);
  const std::int64_t count = repeated ? repeated->integer(1, kMaxRequests) : 1;
  if (static_cast<std::int64_t>(batch.requests.size()) + count > kMaxRequests)
    ref.fail("gives the rank more than " + std::to_string(kMaxRequests) + " requests");
  std::vector<Request>& requests = batch.requests.edit();
  requests.insert(requests.end(), static_cast<std::size_t>(count), request);
}

/// At least `real`, which is what the rank has of `what`.
std::int64_t read_padded(const JsonRef& ref, std::int64_t real, std::string_view what) {
  const std::int64_t padded = ref.integer(0, kMaxTokens);
  if (padded < real)
    ref.fail("must be at least the rank's " + std::to_string(real) + " " + std::string(what) + ", is " +
             std::to_string(padded));
  return padded;
}

RankBatch read_rank(const JsonRef& ref, std::int64_t block_size, std::int64_t& repeat) {
  ObjectReader reader(ref, "an object that describes a rank's batch");
  RankBatch batch;
  reader.find("requests");
  const auto padded_tokens = reader.find("padded_tokens");
  const auto padded_requests = reader.find("padded_requests");
  const auto allow = reader.find("allow");
  const auto repeated = reader.find("repeat");
  reader.done();
  const JsonRef requests = reader.require("requests");
  for (const JsonRef& request : requests.items()) read_request(request, block_size, batch);
  const std::int64_t tokens = batch.tokens();
  if (tokens > kMaxTokens)
    requests.fail("must have at most " + std::to_string(kMaxTokens) + " tokens together, has " +
                  std::to_string(tokens));
  if (padded_tokens) batch.padded_tokens = read_padded(*padded_tokens, tokens, "tokens");
  if (padded_requests)
    batch.padded_requests = read_padded(*padded_requests, static_cast<std::int64_t>(batch.requests.size()), "requests");
  if (allow) batch.allow = allow->boolean();
  repeat = repeated ? repeated->integer(1, 1 << 20) : 1;
  return batch;
}

/// The keys of the explicit form, from an object that may have others.
StepBatch read_explicit(ObjectReader& reader, int data_ranks) {
  StepBatch step;
  if (const auto value = reader.find("block_size")) step.block_size = value->integer(1, 1 << 20);
  if (const auto value = reader.find("draft_tokens")) step.draft_tokens = value->integer(0, 1 << 10);
  const JsonRef ranks = reader.require("ranks");
  std::int64_t listed = 0, requests = 0;
  for (const JsonRef& item : ranks.items()) {
    std::int64_t repeat = 1;
    const RankBatch batch = read_rank(item, step.block_size, repeat);
    listed += repeat;
    requests += repeat * static_cast<std::int64_t>(batch.requests.size());
    if (requests > kMaxRequests) ranks.fail("lists more than " + std::to_string(kMaxRequests) + " requests");
    if (listed <= data_ranks) step.ranks.insert(step.ranks.end(), static_cast<std::size_t>(repeat), batch);
  }
  if (listed != data_ranks)
    ranks.fail("must list the " + std::to_string(data_ranks) + " ranks of /parallel/data, repeats counted, lists " +
               std::to_string(listed));
  return step;
}

std::vector<StepBatch> read_steps_file(const JsonRef& ref, int data_ranks) {
  const std::string path = path_beside(ref.file(), ref.string());
  const std::string text = read_file(path);
  std::vector<StepBatch> steps;
  std::size_t begin = 0;
  for (int line = 1; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    steps.push_back(read_step(JsonRef(json_document(content, path + ":" + std::to_string(line))), data_ranks));
  }
  if (steps.empty()) ref.fail("must name a file with at least one step a line, " + path + " has none");
  return steps;
}

double read_spread(ObjectReader& reader, std::string_view key) {
  const auto value = reader.find(key);
  return value ? value->number(0, 1) : 0.0;
}

std::int64_t read_decode_tokens(const JsonRef& ref, const UniformWorkload& w) {
  const std::int64_t tokens = ref.integer(1, kMaxTokens);
  if (tokens % w.query_tokens != 0)
    ref.fail("must be a multiple of /workload/query_tokens (" + std::to_string(w.query_tokens) + "), is " +
             std::to_string(tokens));
  return tokens;
}

void check_request_count(const JsonRef& ref, const UniformWorkload& w, int data_ranks) {
  const double requests = (static_cast<double>(w.decode_tokens) / static_cast<double>(w.query_tokens) +
                           static_cast<double>(w.prefill_tokens) / static_cast<double>(w.context_tokens)) *
                          data_ranks;
  if (requests > static_cast<double>(kMaxRequests))
    ref.fail("makes more than " + std::to_string(kMaxRequests) + " requests on the " + std::to_string(data_ranks) +
             " ranks");
}

/// The keys of a phase, all known before one is required.
void know_keys(ObjectReader& reader, Phase phase) {
  if (phase == Phase::Mixed)
    for (const std::string_view key : {"decode_tokens", "prefill_tokens"}) reader.find(key);
  else
    reader.find("tokens_per_rank");
  if (phase != Phase::Prefill) reader.find("query_tokens");
  for (const std::string_view key : {"context_tokens", "context_spread", "token_spread", "seed"}) reader.find(key);
  reader.done();
}

void read_tokens(ObjectReader& reader, UniformWorkload& w) {
  switch (w.phase) {
    case Phase::Decode:
      w.decode_tokens = read_decode_tokens(reader.require("tokens_per_rank"), w);
      return;
    case Phase::Prefill:
      w.prefill_tokens = reader.require("tokens_per_rank").integer(1, kMaxTokens);
      return;
    case Phase::Mixed:
      w.decode_tokens = read_decode_tokens(reader.require("decode_tokens"), w);
      w.prefill_tokens = reader.require("prefill_tokens").integer(1, kMaxTokens);
      return;
  }
}

UniformWorkload read_uniform(const JsonRef& ref, int data_ranks) {
  ObjectReader reader(ref, "an object that describes the batch");
  UniformWorkload w;
  w.phase = static_cast<Phase>(reader.require("phase").one_of(phase_names(), "phase"));
  know_keys(reader, w.phase);
  const JsonRef context = reader.require("context_tokens");
  w.context_tokens = context.integer(1, kMaxTokens);
  if (w.phase != Phase::Prefill) {
    if (const auto value = reader.find("query_tokens")) w.query_tokens = value->integer(1, 1 << 10);
    if (w.context_tokens < w.query_tokens)
      context.fail("must be at least /workload/query_tokens (" + std::to_string(w.query_tokens) + "), is " +
                   std::to_string(w.context_tokens));
  }
  read_tokens(reader, w);
  w.context_spread = read_spread(reader, "context_spread");
  w.token_spread = read_spread(reader, "token_spread");
  if (const auto value = reader.find("seed")) w.seed = static_cast<std::uint64_t>(value->count());
  check_request_count(ref, w, data_ranks);
  return w;
}

[[noreturn]] void fail_without_form(const JsonRef& ref) {
  for (const Json::Member& member : ref.value().members())
    if (const auto near = nearest_name(member.first, {"phase", "ranks", "steps", "steps_file"}); !near.empty())
      JsonRef(ref, member.second)
          .fail("unknown key \"" + member.first + "\" (did you mean \"" + std::string(near) + "\"?)");
  ref.fail("must have \"phase\" (a rule for the batch), \"ranks\" (an explicit batch), \"steps\" or \"steps_file\"");
}

}  // namespace

StepBatch read_step(const JsonRef& ref, int data_ranks) {
  ObjectReader reader(ref, "an object that describes a step");
  StepBatch step = read_explicit(reader, data_ranks);
  reader.done();
  return step;
}

WorkloadConfig read_workload(const JsonRef& ref, int data_ranks) {
  ObjectReader reader(ref, "an object that describes the batch");
  WorkloadConfig workload;
  if (reader.has("ranks")) {
    workload.steps.push_back(read_explicit(reader, data_ranks));
    reader.done();
    return workload;
  }
  if (const auto steps = reader.find("steps")) {
    for (const JsonRef& step : steps->items()) workload.steps.push_back(read_step(step, data_ranks));
    if (workload.steps.empty()) steps->fail("must list at least one step");
  } else if (const auto file = reader.find("steps_file")) {
    workload.steps = read_steps_file(*file, data_ranks);
  } else {
    if (!reader.has("phase")) fail_without_form(ref);
    workload.uniform = read_uniform(ref, data_ranks);
    workload.steps.push_back(expand(*workload.uniform, data_ranks));
    return workload;
  }
  reader.done();
  workload.sequence = true;
  return workload;
}

}  // namespace dbo
