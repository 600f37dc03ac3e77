#include "runtime/cuda/moe_table.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "kernels/a2a/nccl_exchange.h"
#include "kernels/compute/pointwise.h"
#include "kernels/stand_in/stand_in.h"
#include "runtime/cuda/check.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace dbo::runtime {
namespace {

void check_plan(const Plan& plan, int ranks_here) {
  const TransportInfo& transport = transport_info(plan.transport);
  if (!plan.shape.has_dims()) {
    throw InputError("the plan's model has no dimensions: replay it with --costs, by stand-ins");
  }
  if (plan.tensor_parallel > 1) throw InputError("replays with real kernels know no tensor parallelism");
  if (transport.simulated_only) {
    throw InputError("transport " + std::string(transport.name) +
                     " is simulated only: replay lsa-ht, lsa-ll, copy-engine or nccl, or stand-ins by --costs");
  }
  if (ranks_here > plan.world.ranks) {
    throw InputError("the plan has " + std::to_string(plan.world.ranks) + " ranks, there cannot be " +
                     std::to_string(ranks_here));
  }
  if (plan.transport == Transport::Nccl && ranks_here < plan.world.ranks) {
    throw InputError("transport nccl needs a GPU for each of the plan's " + std::to_string(plan.world.ranks) +
                     " ranks");
  }
}

int most_tokens(const Plan& plan) {
  std::int64_t most = 1;
  for (const Load& load : plan.loads) {
    for (const UbatchLoad& ubatch : load.ubatches) most = std::max({most, ubatch.padded, ubatch.tokens()});
  }
  return static_cast<int>(most);
}

OpLaunch launches(std::function<void(cudaStream_t)> enqueue) {
  return {std::move(enqueue), false};
}

}  // namespace

MoeTable::MoeTable(const RankSetup& setup, NcclComm* comm, MoeOptions options)
    : plan_(setup.plan),
      linear_(setup.linear),
      plan_rank_(setup.group.size() < setup.plan.world.ranks ? 0 : setup.plan_rank),
      ranks_here_(setup.group.size()),
      comm_sms_(setup.comm_sms),
      compute_sms_(setup.compute_sms),
      deadline_(setup.deadline),
      options_(std::move(options)),
      comm_(comm),
      router_(setup.plan) {
  check_plan(plan_, ranks_here_);
  DBO_CUDA_CHECK(cudaDeviceGetAttribute(&device_sms_, cudaDevAttrMultiProcessorCount, setup.gpu));
  DBO_CUDA_CHECK(kernels::preload_a2a());
  DBO_CUDA_CHECK(kernels::prepare_stand_in());
  moe_ = {.ranks = plan_.world.ranks,
          .rank = plan_rank_,
          .experts_per_rank = router_.placement(plan_.shape.dense_layers).slots,
          .top_k = router_.top_k(),
          .hidden = plan_.shape.hidden,
          .max_tokens = most_tokens(plan_)};
  memory_ = std::make_unique<MoeMemory>(plan_, linear_, plan_rank_, router_, moe_, count_rows(), options_.memory);
  connect(setup, comm);
  embeds_ = std::any_of(linear_.ops.begin(), linear_.ops.end(),
                        [&](const LinearOp& op) { return plan_.op(op.op).kind == OpKind::EMB; });
  packed_.resize(linear_.ops.size());
  copied_.resize(linear_.ops.size());
  if (plan_.transport == Transport::CopyEngine) {
    const cudaError_t status = kernels::find_stream_memory_ops(&memory_ops_);
    if (status != cudaErrorNotSupported) DBO_CUDA_CHECK(status);
    how_ += memory_ops_.found() ? ", arrival by stream memory operations" : ", arrival by epochs";
  }
  if (plan_.transport == Transport::CopyEngine && plan_.find_op("D.send")) {
    copies_ = Stream::create(true);
    table_.side_streams = {copies_.get()};
  }
  begin_ = DeviceBuffer(kernels::mailbox_bytes(1, 1));
  make_entries();
  table_.begin = [this](cudaStream_t stream) {
    DBO_CUDA_CHECK(kernels::launch_step_begin({begin_.get(), nullptr, 0}, stream));
    if (embeds_) return;
    for (int u = 0; u < memory_->ubatches(); ++u) {
      const MoeUbatch& ubatch = memory_->ubatch(u);
      DBO_CUDA_CHECK(cudaMemcpyAsync(
          ubatch.buffers.residual, ubatch.initial,
          static_cast<std::size_t>(ubatch.rows.tokens) * static_cast<std::size_t>(plan_.shape.hidden) * 2,
          cudaMemcpyDefault, stream));
    }
  };
  for (std::uint32_t op = 0; op < linear_.ops.size(); ++op) {
    add_op(op);
    if (options_.poison) poison(op);
  }
  warm_dense_products();
  setup.group.barrier();
}

void MoeTable::warm_dense_products() {
  // cuBLAS loads a kernel when a product first picks it, and a load waits for every GPU of the process: beside a kernel
  // that waits for this rank, forever. So all kinds of products run once before any rank may begin.
  const Stream stream = Stream::create(true);
  std::set<std::tuple<OpId, int, bool>> seen;
  for (std::size_t i = 0; i < linear_.ops.size(); ++i) {
    const LinearOp& op = linear_.ops[i];
    const OpKind kind = plan_.op(op.op).kind;
    if (!is_compute(kind) || kind == OpKind::MLP) continue;
    if (seen.emplace(op.op, op.ubatch, op.layer >= 0 && plan_.shape.is_moe_layer(op.layer)).second)
      table_.ops[i].enqueue(stream.get());
  }
  DBO_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
}

std::vector<std::int32_t> MoeTable::expert_rows(int layer, std::size_t ubatch) const {
  // All that a rank's tokens pick lands here when the next rank plays its peers; else what all ranks' tokens pick.
  const bool played = ranks_here_ < plan_.world.ranks;
  std::vector<std::int32_t> rows(static_cast<std::size_t>(moe_.experts_per_rank), 0);
  std::vector<int> chosen;
  for (int rank = 0; rank < plan_.world.ranks; ++rank) {
    if (played && rank != plan_rank_) continue;
    const RankClass& rank_class = plan_.classes[static_cast<std::size_t>(plan_.class_of(rank))];
    const UbatchLoad& load = plan_.loads[static_cast<std::size_t>(rank_class.load)].ubatches.at(ubatch);
    chosen.resize(static_cast<std::size_t>(load.tokens()) * static_cast<std::size_t>(router_.top_k()));
    router_.experts_of_tokens(rank, layer, {load.token_begin, load.token_end}, chosen.data());
    for (const int expert : chosen) {
      if (!played && expert / moe_.experts_per_rank != plan_rank_) continue;
      ++rows[static_cast<std::size_t>(expert % moe_.experts_per_rank)];
    }
  }
  return rows;
}

std::int64_t MoeTable::count_rows() {
  std::int64_t most = 1, padding = 0, here = 0;
  for (const Load& load : plan_.loads) {
    for (const UbatchLoad& ubatch : load.ubatches) {
      most = std::max(most, ubatch.tokens() * router_.top_k());
      padding = std::max(padding, (ubatch.padded - ubatch.tokens()) * router_.top_k() * plan_.world.ranks);
    }
  }
  for (int layer = 0; layer < plan_.shape.layers; ++layer) {
    if (!plan_.shape.is_moe_layer(layer)) continue;
    for (std::size_t u = 0; u < plan_.loads[0].ubatches.size(); ++u) {
      const std::pair key{router_.routing_class(layer), static_cast<int>(u)};
      if (expert_rows_.count(key) != 0) continue;
      const std::vector<std::int32_t>& rows = expert_rows_.emplace(key, expert_rows(layer, u)).first->second;
      here = std::max(here, std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
    }
  }
  if (options_.memory.route_padding) return most * plan_.world.ranks + padding;
  return ranks_here_ < plan_.world.ranks ? most : std::max(most, here);
}

const kernels::MlpChoice& MoeTable::mlp_choice(int layer, int ubatch) {
  const std::pair key{router_.routing_class(layer), ubatch};
  const auto known = mlp_choices_.find(key);
  if (known != mlp_choices_.end()) return known->second;
  const kernels::LayerDims& dims = memory_->dims();
  const auto type = dims.fp8_experts ? kernels::ElementType::Fp8E4m3 : kernels::ElementType::Bf16;
  return mlp_choices_
      .emplace(key, kernels::choose_mlp(expert_rows_.at(key), dims.hidden, dims.moe.intermediate,
                                        exact_sms(SmPool::Compute), type))
      .first->second;
}

void MoeTable::connect(const RankSetup& setup, NcclComm* comm) {
  kernels::A2aShape shape;
  shape.dims = moe_;
  shape.payload = plan_.shape.dispatch == Precision::Fp8 ? kernels::ElementType::Fp8E4m3 : kernels::ElementType::Bf16;
  shape.transport = plan_.transport;
  // A dispatch and its combine share a slot, each ubatch has its own.
  shape.slots = std::max(memory_->ubatches(), 1);
  layout_ = kernels::make_a2a_layout(shape);
  exchange_ = SymmetricBuffer(setup.group, comm, setup.gpu, layout_.total_bytes);
  // Played peers: GPUs stand for each other's in pairs, an odd last one for its own.
  const int self = setup.group.rank(), next = (self ^ 1) < ranks_here_ ? self ^ 1 : self;
  for (int rank = 0; rank < plan_.world.ranks; ++rank) {
    const int player = ranks_here_ == plan_.world.ranks ? rank : rank == plan_rank_ ? self : next;
    host_peers_.push_back(player == self ? exchange_.base() : exchange_.peers()[static_cast<std::size_t>(player)]);
    players_.push_back(player);
  }
  const std::size_t ranks = host_peers_.size();
  peers_ = DeviceBuffer(ranks * sizeof(std::byte*));
  clocks_ = DeviceBuffer(ranks * sizeof(std::int64_t));
  DBO_CUDA_CHECK(cudaMemcpy(peers_.get(), host_peers_.data(), ranks * sizeof(std::byte*), cudaMemcpyHostToDevice));
  how_ = exchange_.how() + ", activations " + std::to_string(memory_->arena().bytes() >> 10) + " KiB (" +
         std::to_string(memory_->arena().plain_bytes() >> 10) + " without reuse), " + std::to_string(ranks_here_) +
         " of " + std::to_string(plan_.world.ranks) + " ranks" +
         (ranks_here_ < plan_.world.ranks ? ", peers played by the next" : "");
}

void MoeTable::set_clocks(const std::vector<ClockOffset>& clocks, cudaStream_t stream) {
  std::vector<std::int64_t> offsets;
  for (const int player : players_) offsets.push_back(clocks[static_cast<std::size_t>(player)].offset_ns);
  DBO_CUDA_CHECK(cudaMemcpyAsync(clocks_.get(), offsets.data(), offsets.size() * sizeof(std::int64_t),
                                 cudaMemcpyHostToDevice, stream));
}

int MoeTable::exact_sms(SmPool pool) const {
  switch (pool) {
    case SmPool::Compute:
      if (compute_sms_ > 0) return compute_sms_;
      return plan_.sm.control == SmControl::Limit && plan_.sm.comm > 0 ? plan_.sm.compute : device_sms_;
    case SmPool::Comm:
      if (comm_sms_ > 0) return comm_sms_;
      return plan_.sm.comm > 0 ? plan_.sm.comm : std::min(options_.send_sms, device_sms_);
    case SmPool::All:
    case SmPool::None:
      return compute_sms_ > 0 ? compute_sms_ : device_sms_;
  }
  return device_sms_;
}

int MoeTable::sm_target() const {
  const int sms = exact_sms(SmPool::Compute);
  return sms < device_sms_ ? sms : 0;
}

kernels::A2aCall MoeTable::call_of(std::uint32_t plan_op) const {
  const LinearOp& op = linear_.ops[plan_op];
  const OpDef& def = plan_.op(op.op);
  kernels::A2aCall call;
  call.layout = layout_;
  call.base = exchange_.base();
  call.peers = plan_.transport == Transport::Nccl ? nullptr : peers_.as<std::byte*>();
  call.mirrored = ranks_here_ < plan_.world.ranks;
  call.slot = op.ubatch;
  const bool halves = is_send(def.kind) || is_recv(def.kind);
  call.blocks = halves ? std::min(options_.send_sms, exact_sms(def.sms)) : exact_sms(SmPool::Comm);
  call.deadline_ns = static_cast<std::uint64_t>(deadline_.count());
  call.clock_offset_ns = clocks_.as<std::int64_t>();
  // A send tells when it ended if its receive emulates the wire.
  const std::uint32_t timed = is_send(def.kind) ? op.pair : plan_op;
  if (timed < options_.wires.size()) call.wire_ns = static_cast<std::uint64_t>(options_.wires[timed].count());
  return call;
}

kernels::TokenView MoeTable::tokens_of(int ubatch) const {
  const MoeUbatch& u = memory_->ubatch(ubatch);
  return {u.buffers.normed, u.buffers.expert, u.buffers.weight, u.rows.tokens};
}

bool MoeTable::adds_shared(int layer) const {
  // What the layer before left for the residual stream besides C's output: S, or FFN of a dense layer.
  return !plan_.shape.is_moe_layer(layer) || plan_.shape.has_shared();
}

OpLaunch MoeTable::compute_op(const LinearOp& op, OpKind kind) {
  MoeUbatch& u = memory_->ubatch(op.ubatch);
  kernels::OpContext& context = memory_->context();
  const kernels::LayerDims& dims = memory_->dims();
  // What A0 and HEAD add: the outputs of the layer before.
  const void* add[2] = {nullptr, nullptr};
  const int before = kind == OpKind::HEAD ? plan_.shape.layers - 1 : op.layer - 1;
  if (before >= 0) {
    if (plan_.shape.is_moe_layer(before)) add[0] = u.buffers.routed;
    if (adds_shared(before)) add[1] = u.buffers.shared;
  }
  if (kind == OpKind::EMB) {
    const kernels::EmbedArgs args{memory_->model()[kernels::Tensor::Embedding], u.ids, u.buffers.residual,
                                  u.rows.tokens, dims.hidden};
    return launches([args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_embed(args, stream)); });
  }
  if (kind == OpKind::HEAD) {
    kernels::HeadArgs args;
    args.dims = &dims;
    args.weights = memory_->model();
    args.residual = u.buffers.residual;
    args.add[0] = add[0];
    args.add[1] = add[1];
    args.row_index = u.last_rows;
    args.rows = u.rows.requests();
    args.normed = memory_->head_scratch();
    args.logits = u.logits;
    args.sm_target = sm_target();
    return launches(
        [&context, args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_head(context, args, stream)); });
  }
  const kernels::LayerWeights& weights = memory_->layer(op.layer);
  if (kind == OpKind::A0) {
    kernels::A0Args args;
    args.dims = &dims;
    args.weights = weights;
    args.buffers = u.buffers;
    args.scratch = memory_->a0();
    args.batch = u.batch;
    args.cache = memory_->cache(op.layer);
    args.rope = memory_->rope();
    args.add[0] = add[0];
    args.add[1] = add[1];
    args.sm_target = sm_target();
    return launches(
        [&context, args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_a0(context, args, stream)); });
  }
  if (kind == OpKind::A1) {
    kernels::A1Args args;
    args.dims = &dims;
    args.weights = weights;
    args.buffers = u.buffers;
    args.scratch = memory_->a1();
    args.batch = u.batch;
    args.cache = memory_->cache(op.layer);
    args.gate = plan_.shape.is_moe_layer(op.layer);
    args.plan_expert = args.gate ? u.plan_expert[static_cast<std::size_t>(router_.routing_class(op.layer))] : nullptr;
    args.sms = exact_sms(plan_.op(op.op).sms);
    args.sm_target = sm_target();
    return launches(
        [&context, args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_a1(context, args, stream)); });
  }
  DBO_CHECK(kind == OpKind::S || kind == OpKind::FFN, "an op that is no compute op");
  kernels::SwiGluBlockArgs args;
  args.dims = &dims;
  args.up = weights[kind == OpKind::S ? kernels::Tensor::SharedUp : kernels::Tensor::DenseUp];
  args.down = weights[kind == OpKind::S ? kernels::Tensor::SharedDown : kernels::Tensor::DenseDown];
  args.width = kind == OpKind::S ? dims.moe.shared_intermediate : dims.dense_intermediate;
  args.in = u.buffers.normed;
  args.out = u.buffers.shared;
  args.scratch = memory_->swiglu();
  args.tokens = u.rows.tokens;
  args.sm_target = sm_target();
  return launches(
      [&context, args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_swiglu_block(context, args, stream)); });
}

OpLaunch MoeTable::mlp_op(const LinearOp& op) {
  kernels::OpContext& context = memory_->context();
  kernels::MlpArgs args;
  args.dims = &memory_->dims();
  args.weights = memory_->layer(op.layer);
  args.moe = moe_;
  args.payload = layout_.payload;
  if (plan_.transport == Transport::LsaLl) {
    args.expert_major = kernels::expert_major_view(layout_, exchange_.base(), op.ubatch);
  } else {
    args.rank_major = kernels::rank_major_view(layout_, exchange_.base(), op.ubatch);
  }
  args.out = kernels::expert_outputs(layout_, exchange_.base(), op.ubatch);
  args.scratch = memory_->mlp();
  args.max_rows = memory_->max_rows();
  args.choice = mlp_choice(op.layer, op.ubatch);
  args.sms = exact_sms(SmPool::Compute);
  return launches(
      [&context, args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_mlp(context, args, stream)); });
}

void MoeTable::make_entries() {
  for (std::uint32_t op = 0; op < linear_.ops.size(); ++op) {
    if (plan_.op(linear_.ops[op].op).kind == OpKind::D) entry_ops_.push_back(op);
  }
  entry_blocks_ = static_cast<std::size_t>(exact_sms(SmPool::Comm));
  entries_ = DeviceBuffer(entry_ops_.size() * entry_blocks_ * kernels::kScatterTimes * sizeof(std::uint64_t));
}

std::function<kernels::DispatchArgs()> MoeTable::timed(std::uint32_t plan_op, const kernels::DispatchArgs& args) const {
  const auto place = std::find(entry_ops_.begin(), entry_ops_.end(), plan_op);
  if (place == entry_ops_.end()) return [args] { return args; };
  auto* const times = entries_.as<std::uint64_t>() +
                      static_cast<std::size_t>(place - entry_ops_.begin()) * entry_blocks_ * kernels::kScatterTimes;
  return [this, args, times] {
    kernels::DispatchArgs watched = args;
    watched.times = watch_entries_ ? times : nullptr;
    return watched;
  };
}

std::vector<std::int64_t> MoeTable::entries() const {
  std::vector<std::int64_t> first(linear_.ops.size(), 0);
  if (entry_ops_.empty()) return first;
  std::vector<std::uint64_t> times(entries_.bytes() / sizeof(std::uint64_t));
  DBO_CUDA_CHECK(cudaMemcpy(times.data(), entries_.get(), entries_.bytes(), cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < entry_ops_.size(); ++i) {
    for (std::size_t block = 0; block < entry_blocks_; ++block) {
      const auto entered = static_cast<std::int64_t>(times[(i * entry_blocks_ + block) * kernels::kScatterTimes +
                                                           static_cast<std::size_t>(kernels::ScatterTime::Entered)]);
      std::int64_t& earliest = first[entry_ops_[i]];
      if (entered != 0 && (earliest == 0 || entered < earliest)) earliest = entered;
    }
  }
  return first;
}

OpLaunch MoeTable::dispatch_op(std::uint32_t plan_op, OpKind kind) {
  const kernels::A2aCall call = call_of(plan_op);
  const kernels::DispatchArgs args{call, tokens_of(linear_.ops[plan_op].ubatch), nullptr};
  const auto watched = timed(plan_op, args);
  if (plan_.transport == Transport::LsaHt) {
    return launches([watched](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_ht_dispatch(watched(), stream)); });
  }
  if (plan_.transport == Transport::LsaLl && kind == OpKind::DSend) {
    return launches([args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_ll_dispatch_send(args, stream)); });
  }
  if (plan_.transport == Transport::LsaLl) {
    return launches([call](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_ll_dispatch_receive(call, stream)); });
  }
  DBO_CHECK(plan_.transport == Transport::Nccl, "a transport without a dispatch");
  const kernels::NcclArgs exchange{call, nullptr, nullptr, comm_->get()};
  return launches([args, watched, exchange](cudaStream_t stream) {
    DBO_CUDA_CHECK(kernels::launch_nccl_pack(watched(), stream));
    DBO_NCCL_CHECK(kernels::nccl_dispatch(exchange, stream));
    DBO_CUDA_CHECK(kernels::launch_nccl_unpack(args.call, stream));
  });
}

OpLaunch MoeTable::combine_op(std::uint32_t plan_op, OpKind kind) {
  const kernels::A2aCall call = call_of(plan_op);
  const int ubatch = linear_.ops[plan_op].ubatch;
  const kernels::CombineArgs args{call, tokens_of(ubatch), memory_->ubatch(ubatch).buffers.routed};
  if (plan_.transport == Transport::LsaHt) {
    return launches([args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_ht_combine(args, stream)); });
  }
  if (plan_.transport == Transport::LsaLl && kind == OpKind::CSend) {
    return launches([call](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_ll_combine_send(call, stream)); });
  }
  if (plan_.transport == Transport::LsaLl) {
    return launches([args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_ll_combine_receive(args, stream)); });
  }
  DBO_CHECK(plan_.transport == Transport::Nccl, "a transport without a combine");
  const kernels::NcclArgs exchange{call, nullptr, nullptr, comm_->get()};
  return launches([args, exchange](cudaStream_t stream) {
    DBO_NCCL_CHECK(kernels::nccl_combine(exchange, stream));
    DBO_CUDA_CHECK(kernels::launch_nccl_reduce(args, stream));
  });
}

OpLaunch MoeTable::copy_op(std::uint32_t plan_op, OpKind kind) {
  const int ubatch = linear_.ops[plan_op].ubatch;
  const kernels::A2aCall call = call_of(plan_op);
  const kernels::DispatchArgs dispatch{call, tokens_of(ubatch), nullptr};
  const kernels::CombineArgs combine{call, tokens_of(ubatch), memory_->ubatch(ubatch).buffers.routed};
  kernels::CopyArgs copies;
  copies.call = call;
  copies.peers = host_peers_.data();
  copies.memory_ops = memory_ops_;
  const bool is_dispatch_op = is_dispatch(kind);
  const auto watched = timed(plan_op, dispatch);
  const auto pack = [=](cudaStream_t stream) {
    if (is_dispatch_op) {
      DBO_CUDA_CHECK(kernels::launch_copy_pack(watched(), stream));
    } else {
      DBO_CUDA_CHECK(kernels::launch_copy_combine_stamp(call, stream));
    }
  };
  const auto copy = [=](cudaStream_t stream) {
    DBO_CUDA_CHECK(is_dispatch_op ? kernels::launch_copy_dispatch(copies, stream)
                                  : kernels::launch_copy_combine(copies, stream));
  };
  const auto finish = [=](cudaStream_t stream) {
    DBO_CUDA_CHECK(is_dispatch_op ? kernels::launch_copy_dispatch_receive(copies, stream)
                                  : kernels::launch_copy_combine_receive(combine, copies, stream));
  };
  if (is_recv(kind)) {
    // A stream that waits for a word must never stand in front of this rank's own copies, which a peer waits for:
    // nothing but an edge keeps a graph from putting both on one queue.
    const cudaEvent_t copied = copied_[linear_.ops[plan_op].pair].get();
    return launches([=](cudaStream_t stream) {
      DBO_CUDA_CHECK(cudaStreamWaitEvent(stream, copied, 0));
      finish(stream);
    });
  }
  if (is_collective(kind)) {
    return launches([=](cudaStream_t stream) {
      pack(stream);
      copy(stream);
      finish(stream);
    });
  }
  // A send ends with its pack; the copies go on beside the lane.
  packed_[plan_op] = Event::create(false);
  copied_[plan_op] = Event::create(false);
  const cudaEvent_t packed = packed_[plan_op].get(), copied = copied_[plan_op].get();
  const cudaStream_t side = copies_.get();
  return launches([=](cudaStream_t stream) {
    pack(stream);
    DBO_CUDA_CHECK(cudaEventRecord(packed, stream));
    DBO_CUDA_CHECK(cudaStreamWaitEvent(side, packed, 0));
    copy(side);
    DBO_CUDA_CHECK(cudaEventRecord(copied, side));
  });
}

void MoeTable::add_op(std::uint32_t plan_op) {
  const LinearOp& op = linear_.ops[plan_op];
  const OpKind kind = plan_.op(op.op).kind;
  switch (kind) {
    case OpKind::EMB:
    case OpKind::A0:
    case OpKind::A1:
    case OpKind::S:
    case OpKind::FFN:
    case OpKind::HEAD:
      table_.ops.push_back(compute_op(op, kind));
      return;
    case OpKind::MLP:
      table_.ops.push_back(mlp_op(op));
      return;
    case OpKind::D:
    case OpKind::DSend:
    case OpKind::DRecv:
      table_.ops.push_back(plan_.transport == Transport::CopyEngine ? copy_op(plan_op, kind)
                                                                    : dispatch_op(plan_op, kind));
      return;
    case OpKind::C:
    case OpKind::CSend:
    case OpKind::CRecv:
      table_.ops.push_back(plan_.transport == Transport::CopyEngine ? copy_op(plan_op, kind)
                                                                    : combine_op(plan_op, kind));
      return;
    case OpKind::CCopy:
    case OpKind::DWire:
    case OpKind::CWire:
    case OpKind::Other:
      throw InputError("no kernel here does " + describe(plan_, op) + ": replay it by stand-ins, with --costs");
  }
}

void MoeTable::poison(std::uint32_t plan_op) {
  std::vector<std::pair<void*, std::size_t>> areas;
  for (const ArenaSlot* slot : memory_->arena().begun_by(plan_op)) {
    areas.emplace_back(memory_->activations() + slot->offset, slot->bytes);
  }
  if (areas.empty()) return;
  OpLaunch& launch = table_.ops[plan_op];
  launch.enqueue = [areas, op = std::move(launch.enqueue)](cudaStream_t stream) {
    for (const auto& [memory, bytes] : areas) DBO_CUDA_CHECK(cudaMemsetAsync(memory, 0xFF, bytes, stream));
    op(stream);
  };
}

std::int64_t MoeTable::step_begin_ns() const {
  std::uint64_t begin = 0;
  DBO_CUDA_CHECK(cudaMemcpy(&begin, begin_.get() + kernels::kMailboxBeginOffset, sizeof begin, cudaMemcpyDeviceToHost));
  return static_cast<std::int64_t>(begin);
}

MoeLogits MoeTable::logits() const {
  MoeLogits out;
  out.width = memory_->dims().vocab;
  for (int i = 0; i < memory_->ubatches(); ++i) {
    const MoeUbatch& u = memory_->ubatch(i);
    if (u.logits_bytes == 0) continue;
    for (const std::int32_t row : u.last_rows_host)
      out.token.push_back(u.rows.token_of_row[static_cast<std::size_t>(row)]);
    const std::size_t before = out.bf16.size();
    out.bf16.resize(before + static_cast<std::size_t>(u.logits_bytes) / 2);
    DBO_CUDA_CHECK(cudaMemcpy(out.bf16.data() + before, u.logits, static_cast<std::size_t>(u.logits_bytes),
                              cudaMemcpyDeviceToHost));
  }
  return out;
}

std::uint64_t MoeTable::output_hash() const {
  std::string bytes;
  const auto take = [&](const void* from, std::int64_t count) {
    std::string part(static_cast<std::size_t>(count), '\0');
    DBO_CUDA_CHECK(cudaMemcpy(part.data(), from, part.size(), cudaMemcpyDeviceToHost));
    bytes += part;
  };
  for (int i = 0; i < memory_->ubatches(); ++i) {
    const MoeUbatch& u = memory_->ubatch(i);
    const std::int64_t size = std::int64_t{u.rows.tokens} * plan_.shape.hidden * 2;
    if (u.logits_bytes > 0) {
      take(u.logits, u.logits_bytes);
      continue;
    }
    take(u.buffers.residual, size);
    const int last = plan_.shape.layers - 1;
    if (plan_.shape.is_moe_layer(last)) take(u.buffers.routed, size);
    if (adds_shared(last)) take(u.buffers.shared, size);
  }
  return content_hash(bytes);
}

SourceMaker moe_source(NcclComm* comm, MoeOptions options) {
  return [comm, options = std::move(options)](const RankSetup& setup) {
    return std::make_unique<MoeTable>(setup, comm, options);
  };
}

}  // namespace dbo::runtime
