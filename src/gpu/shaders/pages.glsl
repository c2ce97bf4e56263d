// Places of keys and values, see src/model/kv.rs. Units are values of f16 or f32, or lines of int8.
struct Row {
    uint stream;
    uint pos;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Rows { Row at[]; };

// How keys and values are kept.
layout(constant_id = 1) const uint KV = 1u;
const uint F32 = 0u, F16 = 1u, INT8 = 2u;

const uint PAGE = 64u;

// Unit at which the page of a position begins, with the layer's part at `start`.
uint64_t page_of(Words tables, uint table_len, uint stream, uint pos, uint64_t page_units, uint64_t start) {
    uint page = tables.at[stream * table_len + (pos / PAGE) % table_len];
    return uint64_t(page) * page_units + start;
}
