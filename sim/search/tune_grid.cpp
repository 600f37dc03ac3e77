#include "sim/search/tune_grid.h"

#include <algorithm>
#include <set>

#include "sim/base/error.h"
#include "sim/base/schedule_names.h"

namespace dbo {
namespace {

const std::vector<std::string_view> kSmControls = {"limit", "green-context", "none"};

bool is_deepep(Transport transport) {
  return transport == Transport::Ht || transport == Transport::Ll;
}

void add_once(auto& list, const auto& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

/// Tokens of one rank of the config's step.
std::int64_t own_tokens(const Config& config) {
  if (config.workload.uniform) {
    const UniformWorkload& w = *config.workload.uniform;
    return w.decode_tokens + w.prefill_tokens;
  }
  std::int64_t most = 0;
  for (const RankBatch& rank : config.workload.steps.front().ranks) most = std::max(most, rank.tokens());
  return most;
}

class GridMaker {
 public:
  GridMaker(const Config& config, TuneLists lists) : config_(config) { grid_.lists = std::move(lists); }

  TuneGrid make() {
    check();
    complete();
    for (const int gpus : grid_.lists.expert_parallel)
      for (const std::int64_t context : grid_.lists.contexts)
        for (const std::int64_t tokens : grid_.lists.tokens)
          for (const Transport transport : grid_.lists.transports) {
            TunePoint batch;
            if (config_.workload.uniform) batch.phase = config_.workload.uniform->phase;
            batch.tokens = tokens;
            batch.context = context;
            batch.gpus = gpus;
            batch.transport = transport;
            add_transport(batch);
          }
    if (grid_.points.empty()) throw InputError("the lists leave nothing to try");
    return std::move(grid_);
  }

 private:
  void check() const {
    only_step(config_, "tune");
    const TuneLists& l = grid_.lists;
    const bool one_batch = !config_.workload.uniform;
    const bool fixed = config_.costs.source == CostSource::Fixed;
    const char* const why = fixed ? "fixed costs hold for one batch on one cluster"
                                  : "the config lists its requests: only a workload by rule has other sizes";
    // A list with anything but the config's own value would change nothing.
    const auto own_alone = [&](const char* option, const auto& list, auto own, const char* reason) {
      for (const auto value : list)
        if (value != own) throw InputError(config_.file, "", std::string(option) + " cannot vary: " + reason);
    };
    if (one_batch || fixed) {
      own_alone("--batch", l.tokens, own_tokens(config_), why);
      own_alone("--context", l.contexts, own_context(), why);
      own_alone("--ep", l.expert_parallel, config_.cluster.gpus(), why);
    }
    if (fixed) {
      own_alone("--ubatches", l.ubatches, config_.overlap.ubatches, "fixed costs are those of one ubatch");
      const char* const sms = "fixed costs are those of one split of the SMs";
      own_alone("--comm-sms", l.comm_sms, config_.overlap.comm_sms, sms);
      own_alone("--sm-control", l.sm_controls, config_.overlap.sm_control, sms);
    }
    for (const int gpus : l.expert_parallel)
      if (gpus < 1 || gpus % config_.cluster.gpus_per_node != 0 || gpus % config_.parallel.tensor != 0)
        throw InputError("--ep " + std::to_string(gpus) + ": must be whole nodes of " +
                         std::to_string(config_.cluster.gpus_per_node) + " GPUs and a multiple of " +
                         std::to_string(config_.parallel.tensor) + " tensor-parallel ranks");
    for (const std::string& schedule : l.schedules)
      if (find_schedule_name(schedule) == nullptr) {
        std::vector<std::string_view> names;
        for (const ScheduleName& known : schedule_names()) names.push_back(known.name);
        throw InputError("--schedule: unknown schedule \"" + schedule + "\" " + known_names(schedule, names));
      }
    for (const int sms : l.comm_sms)
      if (sms < 0 || sms >= config_.cluster.gpu.sms)
        throw InputError("--comm-sms " + std::to_string(sms) + ": must be below the " +
                         std::to_string(config_.cluster.gpu.sms) + " SMs of " + config_.cluster.gpu.name);
  }

  std::int64_t own_context() const { return config_.workload.uniform ? config_.workload.uniform->context_tokens : 0; }

  void complete() {
    TuneLists& l = grid_.lists;
    const OverlapConfig& overlap = config_.overlap;
    const bool one_batch = !config_.workload.uniform || config_.costs.source == CostSource::Fixed;
    if (l.tokens.empty())
      l.tokens = one_batch ? std::vector<std::int64_t>{own_tokens(config_)}
                           : usual_tokens(config_, config_.workload.uniform->phase);
    if (l.contexts.empty()) l.contexts = {own_context()};
    if (l.expert_parallel.empty()) l.expert_parallel = {config_.cluster.gpus()};
    if (l.transports.empty()) {
      for (const TransportInfo& t : transports())
        if (is_deepep(t.id) == is_deepep(overlap.transport)) l.transports.push_back(t.id);
    }
    if (l.schedules.empty())
      for (const ScheduleName& schedule : schedule_names())
        if (schedule.name != kSequentialSchedule) l.schedules.emplace_back(schedule.name);
    std::erase(l.schedules, kSequentialSchedule);  // it is always tried
    if (l.ubatches.empty()) l.ubatches = {std::max(2, overlap.ubatches)};
    if (config_.costs.source == CostSource::Fixed) {
      // Stated durations are those of one share of the SMs.
      if (l.sm_controls.empty()) l.sm_controls = {overlap.sm_control};
      if (l.comm_sms.empty()) l.comm_sms = {overlap.comm_sms};
    }
    if (l.sm_controls.empty()) {
      l.sm_controls = {SmControl::Limit, SmControl::None};
      add_once(l.sm_controls, overlap.sm_control);
    }
    if (l.comm_sms.empty()) {
      l.comm_sms = {8, 12, 16, 20, 24, 32};
      add_once(l.comm_sms, overlap.comm_sms);
    }
    const auto sort_unique = [](auto& list) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    };
    sort_unique(l.tokens);
    sort_unique(l.contexts);
    sort_unique(l.expert_parallel);
    sort_unique(l.ubatches);
    sort_unique(l.comm_sms);
  }

  void add_transport(const TunePoint& batch) {
    TunePoint unsplit = batch;
    unsplit.schedule = kSequentialSchedule;
    add_group({unsplit});
    const TransportInfo& transport = transport_info(batch.transport);
    for (const int ubatches : grid_.lists.ubatches) {
      if (ubatches < 2) continue;
      if (transport.handle_slots > 0 && ubatches > transport.handle_slots) {
        leave_out(std::to_string(ubatches) + " ubatches with " + std::string(transport.name),
                  "it has " + std::to_string(transport.handle_slots) + " handles (F18)");
        continue;
      }
      if (!transport.limits_sms) {
        add_schedules(batch, ubatches, SmControl::Limit, 0);
        continue;
      }
      for (const SmControl control : grid_.lists.sm_controls)
        for (const int sms : grid_.lists.comm_sms)
          if (takes_sms(transport, control, sms)) add_schedules(batch, ubatches, control, sms);
    }
  }

  bool takes_sms(const TransportInfo& transport, SmControl control, int sms) {
    const GpuSpec& gpu = config_.cluster.gpu;
    const std::string what = std::to_string(sms) + " comm SMs with " + std::string(transport.name);
    if (transport.sms_as_asked && sms == 0) {
      leave_out(what, "its kernel has as many blocks");
    } else if (transport.sms_capped_by_created && sms > config_.overlap.comm_sms_created) {
      leave_out(what, "its kernels were created with " + std::to_string(config_.overlap.comm_sms_created) +
                          " (overlap.comm_sms_created)");
    } else if (transport.sms_even && sms % 2 != 0) {
      leave_out(what, "it takes an even number");
    } else if (sms == 0 && control != SmControl::None) {
      leave_out("no comm SMs with control " + std::string(kSmControls[static_cast<std::size_t>(control)]),
                "nothing is set aside then: it is control none");
    } else if (control == SmControl::GreenContext && gpu.sms - (sms + gpu.green_context_granularity - 1) /
                                                                   gpu.green_context_granularity *
                                                                   gpu.green_context_granularity <
                                                         gpu.green_context_minimum) {
      leave_out(what, "a green context needs " + std::to_string(gpu.green_context_minimum) + " SMs for the rest");
    } else {
      return true;
    }
    return false;
  }

  void add_schedules(const TunePoint& batch, int ubatches, SmControl control, int sms) {
    std::vector<TunePoint> group;
    for (const std::string& name : grid_.lists.schedules) {
      const ScheduleName& schedule = *find_schedule_name(name);
      if (!serves(transport_info(batch.transport), schedule.schedule_class)) continue;
      if (ubatches > schedule.most_ubatches) {
        leave_out(std::to_string(ubatches) + " ubatches with " + name,
                  "it is for at most " + std::to_string(schedule.most_ubatches));
        continue;
      }
      TunePoint point = batch;
      point.ubatches = ubatches;
      point.sm_control = control;
      point.comm_sms = sms;
      point.schedule = name;
      group.push_back(std::move(point));
    }
    add_group(std::move(group));
  }

  void add_group(std::vector<TunePoint> points) {
    if (points.empty()) return;
    const std::size_t first = grid_.points.size();
    for (TunePoint& point : points) grid_.points.push_back(std::move(point));
    grid_.groups.push_back({first, grid_.points.size()});
  }

  void leave_out(const std::string& what, const std::string& why) {
    if (said_.insert(what).second) grid_.left_out.push_back({what, why});
  }

  const Config& config_;
  TuneGrid grid_;
  std::set<std::string> said_;
};

}  // namespace

std::vector<std::int64_t> usual_tokens(const Config& config, Phase phase) {
  std::vector<std::int64_t> tokens =
      phase == Phase::Decode ? std::vector<std::int64_t>{8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}
                             : std::vector<std::int64_t>{256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  const std::int64_t query = config.workload.uniform ? config.workload.uniform->query_tokens : 1;
  if (phase == Phase::Decode)
    for (std::int64_t& t : tokens) t *= query;  // whole requests
  if (config.workload.uniform && config.workload.uniform->phase == phase) tokens.push_back(own_tokens(config));
  if (phase == Phase::Mixed)
    std::erase_if(tokens, [&](std::int64_t t) { return t <= config.workload.uniform->decode_tokens; });
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

TuneGrid make_tune_grid(const Config& config, TuneLists lists) {
  return GridMaker(config, std::move(lists)).make();
}

Json tune_lists_to_json(const TuneLists& lists) {
  Json out = Json::object();
  const auto add = [&](const char* key, const auto& values, const auto& convert) {
    Json list = Json::array();
    for (const auto& value : values) list.push(convert(value));
    out.set(key, std::move(list));
  };
  const auto number = [](auto value) { return Json(static_cast<std::int64_t>(value)); };
  add("tokens", lists.tokens, number);
  add("contexts", lists.contexts, number);
  add("expert_parallel", lists.expert_parallel, number);
  add("transports", lists.transports, [](Transport t) { return Json(transport_info(t).name); });
  add("schedules", lists.schedules, [](const std::string& s) { return Json(s); });
  add("ubatches", lists.ubatches, number);
  add("sm_controls", lists.sm_controls, [](SmControl c) { return Json(kSmControls[static_cast<std::size_t>(c)]); });
  add("comm_sms", lists.comm_sms, number);
  return out;
}

TuneLists tune_lists_from_json(const JsonRef& ref) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  ObjectReader reader(ref, "an object with the lists of a sweep");
  TuneLists lists;
  const auto small = [&](const char* key, std::int64_t least, std::vector<int>& out) {
    for (const std::int64_t value : reader.require(key).integers(least, 1 << 20))
      out.push_back(static_cast<int>(value));
  };
  lists.tokens = reader.require("tokens").integers(1, kMost);
  lists.contexts = reader.require("contexts").integers(0, kMost);
  small("expert_parallel", 1, lists.expert_parallel);
  for (const JsonRef& item : reader.require("transports").items())
    lists.transports.push_back(transports()[item.one_of(transport_names(), "transport")].id);
  for (const JsonRef& item : reader.require("schedules").items()) lists.schedules.push_back(item.string());
  small("ubatches", 1, lists.ubatches);
  for (const JsonRef& item : reader.require("sm_controls").items())
    lists.sm_controls.push_back(static_cast<SmControl>(item.one_of(kSmControls, "SM control")));
  small("comm_sms", 0, lists.comm_sms);
  reader.done();
  return lists;
}

}  // namespace dbo
