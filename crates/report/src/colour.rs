//! A scale of colours whose steps look equal.
//!
//! The colours run through the `OKLCh` space, in which equal distances look equal to the eye:
//! lightness rises evenly from a deep violet to a light yellow. It is the lightness that carries
//! the value, so the scale can be read in grey, in print, and by those who do not see all hues.

/// A colour of a screen.
pub(crate) type Rgb = (u8, u8, u8);

/// The colour for a value between 0 and 1.
pub(crate) fn ramp(share: f64) -> Rgb {
    let share = if share.is_finite() {
        share.clamp(0.0, 1.0)
    } else {
        0.0
    };
    let lightness = 0.32 + share * 0.58;
    let hue = (292.0 - share * 190.0).to_radians();
    // The screen's gamut is narrow at both ends of the scale and around cyan in its middle.
    let chroma = 0.115 + 0.035 * (share * 2.0 - 1.0).powi(2);
    oklch(lightness, chroma, hue)
}

/// Whether black reads better than white on `rgb`.
pub(crate) fn is_light((r, g, b): Rgb) -> bool {
    // The weights of luma in Rec. 601; 140 lies where both contrasts are about equal.
    0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b) > 140.0
}

/// `#rrggbb`.
pub(crate) fn hex((r, g, b): Rgb) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Björn Ottosson's `OKLab`, from polar coordinates to what a screen takes.
#[expect(
    clippy::many_single_char_names,
    reason = "they are the names of the axes"
)]
fn oklch(lightness: f64, chroma: f64, hue: f64) -> Rgb {
    let (a, b) = (chroma * hue.cos(), chroma * hue.sin());
    let l = (lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b).powi(3);
    let m = (lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b).powi(3);
    let s = (lightness - 0.089_484_177_5 * a - 1.291_485_548_0 * b).powi(3);
    (
        channel(4.076_741_662_1 * l - 3.307_711_591_3 * m + 0.230_969_929_2 * s),
        channel(-1.268_438_004_6 * l + 2.609_757_401_1 * m - 0.341_319_396_5 * s),
        channel(-0.004_196_086_3 * l - 0.703_418_614_7 * m + 1.707_614_701_0 * s),
    )
}

/// The sRGB transfer curve.
fn channel(linear: f64) -> u8 {
    let curved = if linear <= 0.003_130_8 {
        12.92 * linear
    } else {
        1.055 * linear.powf(1.0 / 2.4) - 0.055
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped"
    )]
    let byte = (curved.clamp(0.0, 1.0) * 255.0).round() as u8;
    byte
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_and_black_come_out_of_the_colour_space_as_such() {
        assert_eq!(oklch(1.0, 0.0, 0.0), (255, 255, 255));
        assert_eq!(oklch(0.0, 0.0, 0.0), (0, 0, 0));
    }

    #[test]
    fn the_scale_grows_lighter_all_the_way() {
        let luma =
            |(r, g, b): Rgb| 0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b);
        let steps: Vec<_> = (0..=50).map(|i| luma(ramp(f64::from(i) / 50.0))).collect();
        assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "{steps:?}");
    }
}
