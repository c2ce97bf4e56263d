#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Adds y * factor to columns of x, row by row. A row of y for all has the stride 0.
layout(local_size_x = 64) in;
// Whether a row of x has the row of y of its expert.
layout(constant_id = 1) const bool BY_EXPERT = false;
layout(push_constant) uniform Push {
    Floats x; Floats y; Words chosen; uint columns; uint width; uint column; uint stride; float factor;
};
void main() {
    uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (i >= columns) return;
    float term = y.at[(BY_EXPERT ? chosen.at[row] : row) * stride + i];
    if (factor != 1.0) term = mul(term, factor);
    uint at = row * width + column + i;
    x.at[at] = add(x.at[at], term);
}
