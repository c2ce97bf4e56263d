// Places of keys and values, see src/model/kv.rs. Units are values of f16 or f32.
struct Row {
    uint stream;
    uint pos;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Rows { Row at[]; };

// Whether keys and values are f16; otherwise they are f32.
layout(constant_id = 1) const bool IS_HALF = true;

const uint PAGE = 64u;

// Unit at which the page of a position begins, with the layer's part at `start`.
uint64_t page_of(Words tables, uint table_len, uint stream, uint pos, uint64_t page_units, uint64_t start) {
    uint page = tables.at[stream * table_len + (pos / PAGE) % table_len];
    return uint64_t(page) * page_units + start;
}
