#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Rows times their gates, value by value.
layout(local_size_x = 64) in;
layout(constant_id = 1) const uint FORM = 0u;
const uint PLAIN = 0u;      // x * gate
const uint SIGMOID = 1u;    // x * sigmoid(gate), as `gate` in kernels/recurrence.rs
const uint SILU = 2u;       // x * gate * sigmoid(gate), as SwiGLU
const uint OF_ROW = 3u;     // x * sigmoid(gate), where a row has one gate
layout(push_constant) uniform Push {
    Floats x;
    Floats gates;
    Floats y;
    uint columns;
    // Widths of the rows of x, gates and y, and the columns of the first values.
    uint x_width;
    uint x_column;
    uint gate_width;
    uint gate_column;
    uint y_width;
    uint y_column;
};
void main() {
    uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (i >= columns) return;
    float v = x.at[row * x_width + x_column + i];
    float gate = gates.at[row * gate_width + gate_column + (FORM == OF_ROW ? 0u : i)];
    if (FORM == PLAIN) v = mul(v, gate);
    if (FORM == SIGMOID) v = divide(v, add(1.0, exp_within(negative(gate))));
    if (FORM == SILU) v = swiglu(gate, v);
    if (FORM == OF_ROW) v = mul(v, divide(1.0, add(1.0, exp_within(negative(gate)))));
    y.at[row * y_width + y_column + i] = v;
}
