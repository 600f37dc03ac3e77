#include <algorithm>
#include <array>
#include <map>

#include "traces/layer_recovery.h"

namespace dbo {
namespace {

/// What every layer has once a ubatch.
enum class Anchor : std::uint8_t { None, Attention, Dispatch, DispatchRecv, Experts, Combine, CombineRecv };

Anchor anchor_of(Role role) {
  switch (role) {
    case Role::Attention:
      return Anchor::Attention;
    case Role::Dispatch:
    case Role::DispatchSend:
      return Anchor::Dispatch;
    case Role::DispatchRecv:
      return Anchor::DispatchRecv;
    case Role::Experts:
      return Anchor::Experts;
    case Role::Combine:
    case Role::CombineSend:
      return Anchor::Combine;
    case Role::CombineRecv:
      return Anchor::CombineRecv;
    default:
      return Anchor::None;
  }
}

struct Place {
  std::int32_t layer = -1;
  std::int16_t ubatch = 0;
};

/// The slices of one pass of one rank, stream by stream.
using StepSlices = std::vector<std::vector<std::uint32_t>>;

/// By slice, shared by all passes: each touches only its own.
struct Anchors {
  std::vector<std::uint32_t> owner;  ///< the anchor a slice is part of
  std::vector<Place> place;          ///< of anchors
};

class StepPlacer {
 public:
  StepPlacer(ClassifiedTrace& trace, const StepSlices& streams, Anchors& anchors)
      : trace_(trace), streams_(streams), owner_(anchors.owner), place_(anchors.place) {}

  bool run() {
    collect();
    if (of(Anchor::Attention).empty() && of(Anchor::Experts).empty()) return false;
    count_ubatches();
    number_anchors();
    for (const std::vector<std::uint32_t>& stream : streams_) place_stream(stream);
    return true;
  }
  int dense_layers() const { return dense_; }

 private:
  const std::vector<std::uint32_t>& of(Anchor anchor) const { return anchors_[static_cast<std::size_t>(anchor)]; }
  std::vector<std::uint32_t>& of(Anchor anchor) { return anchors_[static_cast<std::size_t>(anchor)]; }

  /// Anchor slices by start. Attention kernels that follow each other on a stream (a split core and its merge) are one
  /// anchor: the first stands for it, the others point to it.
  void collect() {
    for (const std::vector<std::uint32_t>& stream : streams_) {
      std::uint32_t core = UINT32_MAX;
      for (const std::uint32_t i : stream) {
        const Anchor anchor = anchor_of(trace_.info[i].role);
        if (anchor != Anchor::Attention) core = UINT32_MAX;
        if (anchor == Anchor::None) continue;
        owner_[i] = anchor == Anchor::Attention && core != UINT32_MAX ? core : i;
        if (owner_[i] == i) of(anchor).push_back(i);
        if (anchor == Anchor::Attention) core = owner_[i];
      }
    }
    for (std::vector<std::uint32_t>& list : anchors_)
      std::stable_sort(list.begin(), list.end(), [&](std::uint32_t a, std::uint32_t b) {
        return trace_.raw.slices[a].start_ns < trace_.raw.slices[b].start_ns;
      });
    drop_carried_over();
  }

  /// A trace that begins inside a step has the end of a layer first: receives, experts and combines before the first
  /// dispatch belong to nothing that is numbered.
  void drop_carried_over() {
    if (of(Anchor::Dispatch).empty()) return;
    const std::int64_t first = trace_.raw.slices[of(Anchor::Dispatch).front()].start_ns;
    for (const Anchor anchor : {Anchor::DispatchRecv, Anchor::Experts, Anchor::Combine, Anchor::CombineRecv})
      std::erase_if(of(anchor), [&](std::uint32_t i) { return trace_.raw.slices[i].start_ns < first; });
  }

  /// As many as dispatches were begun whose combine was not over, at most.
  void count_ubatches() {
    const std::vector<std::uint32_t>& over =
        of(Anchor::CombineRecv).empty() ? of(Anchor::Combine) : of(Anchor::CombineRecv);
    std::size_t done = 0;
    for (std::size_t begun = 0; begun < of(Anchor::Dispatch).size(); ++begun) {
      const std::int64_t start = trace_.raw.slices[of(Anchor::Dispatch)[begun]].start_ns;
      while (done < over.size() && trace_.raw.slices[over[done]].end_ns() <= start) ++done;
      if (begun + 1 > done) ubatches_ = std::max(ubatches_, begun + 1 - done);
    }
    ubatches_ = std::clamp<std::size_t>(ubatches_, 1, 8);
  }

  void number_anchors() {
    const std::size_t cores = of(Anchor::Attention).size(), dispatches = of(Anchor::Dispatch).size();
    if (dispatches > 0 && cores > dispatches)
      dense_ = static_cast<int>((cores - dispatches + ubatches_ / 2) / ubatches_);
    for (const Anchor anchor : {Anchor::Dispatch, Anchor::DispatchRecv, Anchor::Combine, Anchor::CombineRecv})
      number(of(anchor), 1, static_cast<std::size_t>(dense_) * ubatches_);
    // An MLP is a fixed number of grouped GEMMs, mostly two.
    const std::size_t experts = of(Anchor::Experts).size();
    const std::size_t blocks = dispatches > 0 ? dispatches : cores;
    const std::size_t each = blocks > 0 ? std::max<std::size_t>(1, (experts + blocks / 2) / blocks) : 2;
    number(of(Anchor::Experts), each, static_cast<std::size_t>(dense_) * ubatches_);
    number_attention();
  }

  void number(const std::vector<std::uint32_t>& list, std::size_t each, std::size_t skipped) {
    for (std::size_t k = 0; k < list.size(); ++k) {
      const std::size_t block = skipped + k / each;
      place_[list[k]] = {static_cast<std::int32_t>(block / ubatches_), static_cast<std::int16_t>(block % ubatches_)};
    }
  }

  /// Ubatches alternate, except before the first dispatch where one may run through all dense layers on its own: then
  /// one ubatch's dense layers and first MoE attention come before it, not all ubatches'.
  void number_attention() {
    const std::vector<std::uint32_t>& cores = of(Anchor::Attention);
    const auto run = static_cast<std::size_t>(dense_) + 1;
    std::size_t before = 0;
    if (!of(Anchor::Dispatch).empty()) {
      const std::int64_t first = trace_.raw.slices[of(Anchor::Dispatch).front()].start_ns;
      while (before < cores.size() && trace_.raw.slices[cores[before]].start_ns < first) ++before;
    }
    const bool one_by_one = dense_ > 0 && before == run;
    for (std::size_t k = 0; k < cores.size(); ++k) {
      const bool prologue = one_by_one && k < run * ubatches_;
      place_[cores[k]] =
          prologue ? Place{static_cast<std::int32_t>(k % run), static_cast<std::int16_t>(k / run)}
                   : Place{static_cast<std::int32_t>(k / ubatches_), static_cast<std::int16_t>(k % ubatches_)};
    }
  }

  void assign(std::uint32_t i, OpKind kind, Place place) {
    SliceInfo& info = trace_.info[i];
    info.kind = kind;
    info.layer = place.layer;
    info.ubatch = place.ubatch;
  }

  void place_stream(const std::vector<std::uint32_t>& stream) {
    std::vector<std::uint32_t> region;
    std::uint32_t last = UINT32_MAX;  // anchor the region follows
    for (const std::uint32_t i : stream) {
      const bool numbered = owner_[i] != UINT32_MAX && place_[owner_[i]].layer >= 0;
      if (!numbered) {
        region.push_back(i);
        continue;
      }
      place_region(region, last, owner_[i]);
      region.clear();
      place_anchor(i);
      last = owner_[i];
    }
    place_region(region, last, UINT32_MAX);
  }

  void place_anchor(std::uint32_t i) {
    const Place place = place_[owner_[i]];
    switch (trace_.info[i].role) {
      case Role::Attention:
        return assign(i, OpKind::A1, place);
      case Role::Experts:
        return assign(i, OpKind::MLP, place);
      case Role::Dispatch:
        return assign(i, OpKind::D, place);
      case Role::DispatchSend:
        return assign(i, OpKind::DSend, place);
      case Role::DispatchRecv:
        return assign(i, OpKind::DRecv, place);
      case Role::Combine:
        return assign(i, OpKind::C, place);
      case Role::CombineSend:
        return assign(i, OpKind::CSend, place);
      case Role::CombineRecv:
        return assign(i, OpKind::CRecv, place);
      default:
        return;
    }
  }

  Role role(std::uint32_t i) const { return trace_.info[i].role; }
  Anchor anchor(std::uint32_t i) const { return i == UINT32_MAX ? Anchor::None : anchor_of(role(i)); }

  /// First slice of a region, from `from` on, with the role; the region's size when there is none.
  std::size_t find(const std::vector<std::uint32_t>& region, Role wanted, std::size_t from = 0) const {
    while (from < region.size() && role(region[from]) != wanted) ++from;
    return from;
  }

  void fill(const std::vector<std::uint32_t>& region, std::size_t from, std::size_t to, OpKind kind, Place place) {
    for (std::size_t k = from; k < to; ++k)
      if (trace_.info[region[k]].cls == KernelClass::Compute || trace_.info[region[k]].cls == KernelClass::Memory)
        assign(region[k], kind, place);
  }

  /// Setup kernels go with the operation they precede.
  void place_setups(const std::vector<std::uint32_t>& region, std::uint32_t next) {
    for (const std::uint32_t i : region) {
      if (role(i) == Role::DispatchSetup && anchor(next) == Anchor::Dispatch) assign(i, OpKind::D, place_[next]);
      if (role(i) == Role::CombineSetup && anchor(next) == Anchor::Combine) assign(i, OpKind::C, place_[next]);
    }
  }

  /// The compute between two anchors of a stream. A norm begins attention; a GEMM between a send (or the MLP) and that
  /// norm is the shared expert.
  void place_region(const std::vector<std::uint32_t>& region, std::uint32_t before, std::uint32_t after) {
    if (region.empty()) return;
    place_setups(region, after);
    const Anchor from = anchor(before), to = anchor(after);
    if (from == Anchor::None && to == Anchor::None) return;
    if (to == Anchor::Attention) return before_attention(region, before, place_[after]);
    if (to == Anchor::None) return after_last(region, before);
    if (from == Anchor::Attention) {
      const std::size_t end = to == Anchor::Experts ? trailing_aux(region) : region.size();
      fill(region, 0, end, OpKind::A1, place_[before]);
      return fill(region, end, region.size(), OpKind::MLP, place_[after]);
    }
    if (to == Anchor::Dispatch) return fill(region, 0, region.size(), OpKind::A1, place_[after]);
    if (to == Anchor::Experts) {
      const std::size_t end = from == Anchor::Combine ? trailing_aux(region) : 0;
      fill(region, 0, end, OpKind::S, before == UINT32_MAX ? Place{} : place_[before]);
      return fill(region, end, region.size(), OpKind::MLP, place_[after]);
    }
    if (from == Anchor::Experts || from == Anchor::DispatchRecv || from == Anchor::None) {
      if (before != UINT32_MAX) fill(region, 0, region.size(), OpKind::MLP, place_[before]);
      return;
    }
    // The last receive comes behind the other ubatch's final norm and head.
    const std::size_t norm = to == Anchor::CombineRecv ? find(region, Role::Norm) : region.size();
    const Place own = place_[before];
    fill(region, 0, norm, OpKind::S, own);
    const auto other = static_cast<std::int16_t>((static_cast<std::size_t>(own.ubatch) + 1) % ubatches_);
    fill(region, norm, region.size(), OpKind::HEAD, {-1, other});
  }

  /// Where the permutation before a grouped GEMM begins: behind the last GEMM or router of the region.
  std::size_t trailing_aux(const std::vector<std::uint32_t>& region) const {
    std::size_t begin = find(region, Role::ExpertsAux);
    for (std::size_t k = begin; k < region.size(); ++k)
      if (role(region[k]) == Role::Gemm || role(region[k]) == Role::Router) begin = find(region, Role::ExpertsAux, k);
    return begin;
  }

  void before_attention(const std::vector<std::uint32_t>& region, std::uint32_t before, Place next) {
    const Anchor from = anchor(before);
    std::size_t norm = find(region, Role::Norm);
    if (from == Anchor::None) {
      const std::size_t embed = find(region, Role::Embed);
      const bool first = embed < region.size() && next.layer == 0;
      fill(region, 0, first ? embed + 1 : 0, OpKind::EMB, {-1, next.ubatch});
      return fill(region, first ? embed + 1 : 0, region.size(), OpKind::A0, next);
    }
    const Place own = place_[before];
    if (from == Anchor::Attention) {
      // A MoE layer's router, or a dense layer's FFN between two norms.
      const std::size_t router = find(region, Role::Router);
      if (router < region.size()) {
        norm = find(region, Role::Norm, router);
        fill(region, 0, norm, OpKind::A1, own);
      } else {
        const std::size_t second = norm < region.size() ? find(region, Role::Norm, norm + 1) : region.size();
        const bool ffn = second < region.size();
        fill(region, 0, ffn ? norm + 1 : norm, OpKind::A1, own);
        if (ffn) fill(region, norm + 1, second, OpKind::FFN, own);
        norm = ffn ? second : norm;
      }
      return fill(region, norm, region.size(), OpKind::A0, next);
    }
    const std::size_t gemm = find(region, Role::Gemm);
    const bool shared = gemm < norm;
    if (from == Anchor::Experts) {
      fill(region, 0, shared ? gemm : norm, OpKind::MLP, own);
      if (shared) place_shared(region, gemm, norm, own.layer);
    } else if (shared) {
      fill(region, 0, norm, OpKind::S, own);
    } else {
      norm = 0;
    }
    fill(region, norm, region.size(), OpKind::A0, next);
  }

  /// The shared experts of all ubatches in a row (high throughput): as many GEMMs each.
  void place_shared(const std::vector<std::uint32_t>& region, std::size_t from, std::size_t to, std::int32_t layer) {
    std::size_t gemms = 0, seen = 0;
    for (std::size_t k = from; k < to; ++k) gemms += role(region[k]) == Role::Gemm ? 1U : 0U;
    for (std::size_t k = from; k < to; ++k) {
      seen += role(region[k]) == Role::Gemm ? 1U : 0U;
      const std::size_t ubatch = std::min((std::max<std::size_t>(seen, 1) - 1) * ubatches_ / gemms, ubatches_ - 1);
      fill(region, k, k + 1, OpKind::S, {layer, static_cast<std::int16_t>(ubatch)});
    }
  }

  /// Behind the last anchor: what is left of the layer, then from the final norm on the head.
  void after_last(const std::vector<std::uint32_t>& region, std::uint32_t before) {
    const Place own = place_[before];
    const std::size_t norm = find(region, Role::Norm);
    switch (anchor(before)) {
      case Anchor::Attention:
        return fill(region, 0, region.size(), OpKind::A1, own);
      case Anchor::Experts:
        if (const std::size_t gemm = find(region, Role::Gemm); gemm < norm) {
          fill(region, 0, gemm, OpKind::MLP, own);
          place_shared(region, gemm, norm, own.layer);
        } else {
          fill(region, 0, norm, OpKind::MLP, own);
        }
        break;
      default:
        if (find(region, Role::Gemm) < norm) fill(region, 0, norm, OpKind::S, own);
        break;
    }
    fill(region, norm, region.size(), OpKind::HEAD, {-1, own.ubatch});
  }

  ClassifiedTrace& trace_;
  const StepSlices& streams_;
  std::vector<std::uint32_t>& owner_;
  std::vector<Place>& place_;
  std::array<std::vector<std::uint32_t>, 7> anchors_;
  std::size_t ubatches_ = 1;
  int dense_ = 0;
};

}  // namespace

bool place_by_order(ClassifiedTrace& trace) {
  std::map<std::pair<std::int32_t, std::int32_t>, StepSlices> passes;
  for (const Stream& stream : trace.streams) {
    std::map<std::int32_t, std::vector<std::uint32_t>> steps;
    for (const std::uint32_t i : stream.slices) steps[trace.info[i].step].push_back(i);
    for (auto& [step, slices] : steps) passes[{stream.rank, step}].push_back(std::move(slices));
  }
  Anchors anchors{std::vector<std::uint32_t>(trace.info.size(), UINT32_MAX), std::vector<Place>(trace.info.size())};
  bool any = false;
  for (const auto& [pass, streams] : passes) {
    StepPlacer placer(trace, streams, anchors);
    if (!placer.run()) continue;
    any = true;
    trace.dense_layers = std::max(trace.dense_layers, placer.dense_layers());
  }
  return any;
}

}  // namespace dbo
