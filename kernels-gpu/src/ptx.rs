//! The kernels as the driver takes them: PTX, which it compiles for the card that is there and keeps, and code that is ready for some cards.

/// A module's name and its bytes.
pub(crate) struct Image {
    pub name: &'static str,
    /// Zero-terminated where it is text.
    pub bytes: &'static [u8],
    /// Its kernels wait themselves for the launches before them, and may begin while those end.
    pub overlaps: bool,
}

/// What to try for a card of this compute capability, in order. An older driver may refuse ready code.
pub(crate) fn for_card(capability: (i32, i32)) -> Vec<Image> {
    let ready = Image { name: "code for sm_90", bytes: include_bytes!("../ptx/sm_90.cubin"), overlaps: true };
    let text = Image {
        name: "PTX for sm_80 and newer",
        bytes: concat!(include_str!("../ptx/sm_80.ptx"), "\0").as_bytes(),
        overlaps: false,
    };
    match capability {
        (9, 0) => vec![ready, text],
        _ => vec![text],
    }
}
