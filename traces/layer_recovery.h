// Places the slices of a foreign trace in ops, layers and ubatches.
#pragma once

#include "traces/classify.h"

namespace dbo {

/// Tells apart what kernel names leave open. Setup kernels belong to the next dispatch or combine of their stream.
/// Low-latency kernels have one name for send and receive: when there are about twice as many as MLPs, they alternate;
/// otherwise each is the whole operation.
void resolve_comm_roles(ClassifiedTrace& trace);

/// By named ranges of the host: a slice belongs to the innermost range with a rule that its launch lies in. Returns
/// whether the trace has such ranges for attention and for experts, dispatch or combine; else nothing is changed.
///
/// Layers come from "layers.N" in a range's name or an enclosing one's, else from counting ranges of one name. Ranges
/// "(F)" are ubatch 0, "(B)" and "(W)" ubatch 1: training overlaps one micro-batch's forward with another's backward.
/// Communication keeps the kind of its kernel (what it moves), not of its range: a backward dispatch runs a combine.
bool place_by_ranges(ClassifiedTrace& trace, const KernelRules& rules);

/// By anchors that every layer has once a ubatch: attention core, dispatch, grouped GEMM, combine. What lies between
/// two anchors of a stream belongs to one of them, see the table in layer_recovery.cpp. Returns whether anything was
/// placed.
bool place_by_order(ClassifiedTrace& trace);

}  // namespace dbo
