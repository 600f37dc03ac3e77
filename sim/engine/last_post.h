// Who posts a call last: whom its data or its other ranks wait for.
#pragma once

#include <cstdint>

namespace dbo {

/// Takes in that `group` posts at `time`: the last so far, of several the one with the lowest number.
inline void note_post(std::int32_t group, std::int64_t time, std::int64_t& latest, std::int32_t& last) {
  if (time > latest || last < 0 || (time == latest && group < last)) last = group;
  if (time > latest) latest = time;
}

}  // namespace dbo
