// The JSON Schema that ships for editors says what the reader says.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "sim/base/files.h"
#include "sim/base/schedule_names.h"
#include "sim/model/presets.h"
#include "tests/sim/config/config_text.h"
#include "tests/sim/config/json_schema.h"

using namespace dbo;

namespace {

const std::string kRoot = DBO_SOURCE_ROOT;

Json load_schema() {
  return load_json(kRoot + "/sim/config/config.schema.json")->root;
}

/// Configs that between them use every form the reader knows.
std::vector<std::string> every_form() {
  const std::string gqa = R"({"layers": 2, "hidden": 64, "vocab": 100, "attention": {"kind": "gqa", "heads": 4,
    "kv_heads": 2, "head_dim": 16}, "moe": {"routed_experts": 8, "top_k": 2, "intermediate": 32}})";
  const std::string mla = R"({"layers": 2, "hidden": 64, "vocab": 100, "attention": {"kind": "mla", "heads": 4,
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "sparse_index": {"heads": 2, "head_dim": 8, "top_k": 4}}, "moe": {"routed_experts": 8, "top_k": 2,
    "intermediate": 32}, "precision": {"weights": "fp8"}})";
  const std::string explicit_batch = R"({"ranks": [{"requests": [{"query": 1, "seq": 4}], "repeat": 2}]})";
  return {
      ConfigText{.model = gqa}.text(),
      ConfigText{.model = mla, .more = R"(, "overlap": {}, "execution": {"host": {}}, "routing": {})"}.text(),
      ConfigText{.model = R"({"preset": "deepseek-v3"})",
                 .workload = R"({"phase": "prefill", "tokens_per_rank": 8, "context_tokens": 8})",
                 .more = R"(, "cluster": {"gpu": {"preset": "h100-sxm"}, "fabric": {"preset": "nvl72"},
                            "stragglers": [{"ranks": [1], "compute_factor": 1.5, "wire_factor": 2}]},
                            "overlap": {"schedule": {"compute": "A0_0", "comm": "", "order": ""}})"}
          .text(),
      ConfigText{.workload = R"({"phase": "mixed", "decode_tokens": 8, "prefill_tokens": 8, "context_tokens": 8})",
                 .costs = R"({"source": "fixed", "D": {}, "C": {}})",
                 .more = R"(, "$schema": "x", "routing": {"kind": "zipf", "alpha": 1})"}
          .text(),
      ConfigText{.workload = explicit_batch, .more = R"(, "routing": {"kind": "table", "table": [[0.5, 0.5]]})"}.text(),
      ConfigText{.workload = "{\"steps\": [" + explicit_batch + "]}"}.text(),
  };
}

/// Forms that name files: the reader fails on the missing file, having asked for its keys.
std::vector<std::string> file_forms() {
  return {ConfigText{.workload = R"({"steps_file": "none"})"}.text(),
          ConfigText{.costs = R"({"source": "profile", "file": "none"})"}.text(),
          ConfigText{.model = R"({"hf_config": "none"})"}.text()};
}

std::string without_indices(const std::string& path) {
  std::string out;
  std::size_t begin = 1;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool index = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out += "/" + (index ? "*" : part);
    begin = end + 1;
  }
  return out;
}

std::set<std::string> paths_asked(const std::string& text) {
  const auto document = std::make_shared<JsonDocument>(JsonDocument{"c.json", parse_json(text, "c.json"), {}});
  document->asked = std::make_shared<std::set<std::string>>();
  try {
    config_from_json(JsonRef(document));
  } catch (const InputError&) {  // file forms
  }
  std::set<std::string> paths;
  for (const std::string& path : *document->asked) paths.insert(without_indices(path));
  return paths;
}

std::vector<std::string> differing(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::vector<std::string> out;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

std::vector<std::string> names_at(const Json& schema, std::string_view definition) {
  std::vector<std::string> names;
  for (const Json& name : schema.find("$defs")->find(definition)->find("enum")->items())
    names.push_back(name.as_string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> sorted(const std::vector<std::string_view>& names) {
  std::vector<std::string> out(names.begin(), names.end());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("schema: it names exactly the keys the reader asks for") {
  std::set<std::string> asked;
  for (const std::string& text : every_form()) {
    CAPTURE(text);
    CHECK(config_error(text) == "no error");
    asked.merge(paths_asked(text));
  }
  for (const std::string& text : file_forms()) asked.merge(paths_asked(text));
  const std::set<std::string> known = schema_paths(load_schema());
  CHECK(differing(asked, known) == std::vector<std::string>{});
  CHECK(differing(known, asked) == std::vector<std::string>{});
}

TEST_CASE("schema: its preset, schedule and transport names are the program's") {
  const Json schema = load_schema();
  CHECK(names_at(schema, "model_name") == sorted(model_names()));
  CHECK(names_at(schema, "gpu_name") == sorted(gpu_names()));
  CHECK(names_at(schema, "fabric_name") == sorted(fabric_names()));
  const Json& overlap = *schema.find("$defs")->find("overlap")->find("properties");
  std::vector<Json> schedules, transport_list;
  for (const ScheduleName& schedule : schedule_names()) schedules.emplace_back(schedule.name);
  for (const std::string_view name : transport_names()) transport_list.emplace_back(name);
  CHECK(overlap.find("schedule")->find("anyOf")->items()[0].find("enum")->items() == schedules);
  CHECK(overlap.find("transport")->find("enum")->items() == transport_list);
}

TEST_CASE("schema: it accepts what the reader accepts") {
  const Json schema = load_schema();
  std::vector<std::string> texts = every_form();
  const std::vector<std::string> files = file_forms();
  texts.insert(texts.end(), files.begin(), files.end());
  for (const std::string& text : texts) {
    CAPTURE(text);
    CHECK(schema_violation(schema, parse_json(text, "c.json")) == "");
  }
  // A resolved config is a config.
  CHECK(schema_violation(schema, config_to_json(read_config(texts[0]))) == "");
}

TEST_CASE("schema: it accepts the examples and the cases") {
  const Json schema = load_schema();
  int checked = 0;
  for (const std::string name : {"decide", "timeline"}) {
    const std::string path = kRoot + "/tests/cases/" + name + ".json";
    if (!std::filesystem::exists(path)) continue;
    const auto cases = load_json(path);
    for (const Json& test_case : cases->root.items()) {
      CAPTURE(test_case.find("name")->as_string());
      CHECK(schema_violation(schema, *test_case.find("config")) == "");
      ++checked;
    }
  }
  CHECK(checked > 0);
  if (!std::filesystem::is_directory(kRoot + "/examples")) return;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot + "/examples")) {
    if (entry.path().extension() != ".json") continue;
    const Json value = load_json(entry.path().string(), {.comments = true})->root;
    if (value.find("workload") == nullptr) continue;  // not a config: a Hugging Face file, a costs file
    CAPTURE(entry.path().string());
    CHECK(schema_violation(schema, value) == "");
  }
}

TEST_CASE("schema: it refuses what one value makes wrong") {
  const Json schema = load_schema();
  const auto violation = [&](const ConfigText& parts) {
    return schema_violation(schema, parse_json(parts.text(), "c.json"));
  };
  CHECK(violation(ConfigText{}) == "");
  CHECK(violation({.more = R"(, "overlapp": {})"}) == "/overlapp: unknown key");
  CHECK(violation({.more = R"(, "overlap": {"ubatches": 2.5})"}) == "/overlap/ubatches: not integer");
  CHECK(violation({.more = R"(, "overlap": {"ubatches": 65})"}) == "/overlap/ubatches: too large");
  CHECK(violation({.model = "\"deepseek-v33\""}).starts_with("/model: matches no form"));
  CHECK(violation({.workload = R"({"phase": "decode", "tokens_per_rank": -4, "context_tokens": 8})"})
            .starts_with("/workload: matches no form"));
  CHECK(violation({.parallel = "{}"}) == "/parallel: lacks data");
}
