//! SDK for seats: builder, checker, frozen plugin table and export macro.
