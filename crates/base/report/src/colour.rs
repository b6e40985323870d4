//! A perceptually uniform colour scale.
//!
//! The colours are chosen in the `OKLCh` space, in which equal distances look equal. Lightness rises evenly from a deep
//! violet to a light yellow. Lightness carries the value, so the scale works in greyscale, in print, and for
//! colour-blind readers.

/// An sRGB colour.
pub(crate) type Rgb = (u8, u8, u8);

/// The chroma of the scale, where sRGB allows it.
const CHROMA: f64 = 0.15;

/// The colour for a value between 0 and 1.
pub(crate) fn ramp(share: f64) -> Rgb {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let lightness = 0.32 + share * 0.58;
    let hue = (292.0 - share * 190.0).to_radians();
    oklch(lightness, CHROMA, hue)
}

/// Whether black text is more legible than white on `rgb`.
pub(crate) fn is_light((r, g, b): Rgb) -> bool {
    // The luma weights of Rec. 601. At 140 both contrasts are about equal.
    0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b) > 140.0
}

/// `#rrggbb`.
pub(crate) fn hex((r, g, b): Rgb) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// The colour with the given lightness and hue, and the largest chroma up to `chroma` that sRGB can show.
///
/// Clamping the channels would change lightness and hue; reducing the chroma does not.
fn oklch(lightness: f64, chroma: f64, hue: f64) -> Rgb {
    let mut chroma = chroma;
    loop {
        let linear = linear_rgb(lightness, chroma * hue.cos(), chroma * hue.sin());
        if chroma < 0.01 || linear.iter().all(|value| (0.0..=1.0).contains(value)) {
            let [r, g, b] = linear.map(channel);
            return (r, g, b);
        }
        chroma *= 0.99;
    }
}

/// Converts Björn Ottosson's `OKLab` to linear sRGB.
#[expect(clippy::many_single_char_names, reason = "they are the names of the axes")]
fn linear_rgb(lightness: f64, a: f64, b: f64) -> [f64; 3] {
    let l = (lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b).powi(3);
    let m = (lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b).powi(3);
    let s = (lightness - 0.089_484_177_5 * a - 1.291_485_548_0 * b).powi(3);
    [
        4.076_741_662_1 * l - 3.307_711_591_3 * m + 0.230_969_929_2 * s,
        -1.268_438_004_6 * l + 2.609_757_401_1 * m - 0.341_319_396_5 * s,
        -0.004_196_086_3 * l - 0.703_418_614_7 * m + 1.707_614_701_0 * s,
    ]
}

/// The sRGB transfer curve.
fn channel(linear: f64) -> u8 {
    let curved = if linear <= 0.003_130_8 {
        12.92 * linear
    } else {
        1.055 * linear.powf(1.0 / 2.4) - 0.055
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let byte = (curved.clamp(0.0, 1.0) * 255.0).round() as u8;
    byte
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_and_black_are_converted_exactly() {
        assert_eq!(oklch(1.0, 0.0, 0.0), (255, 255, 255));
        assert_eq!(oklch(0.0, 0.0, 0.0), (0, 0, 0));
    }

    /// The `OKLab` lightness of an sRGB colour.
    fn lightness((r, g, b): Rgb) -> f64 {
        let linear = |byte: u8| {
            let value = f64::from(byte) / 255.0;
            if value <= 0.040_45 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        let (r, g, b) = (linear(r), linear(g), linear(b));
        let long = (0.412_221_470_8 * r + 0.536_332_536_3 * g + 0.051_445_992_9 * b).cbrt();
        let medium = (0.211_903_498_2 * r + 0.680_699_545_1 * g + 0.107_396_956_6 * b).cbrt();
        let short = (0.088_302_461_9 * r + 0.281_718_837_6 * g + 0.629_978_700_5 * b).cbrt();
        0.210_454_255_3 * long + 0.793_617_785_0 * medium - 0.004_072_046_8 * short
    }

    #[test]
    fn equal_steps_of_the_scale_look_equally_lighter() {
        let steps: Vec<_> = (0..=20).map(|i| lightness(ramp(f64::from(i) / 20.0))).collect();
        for pair in steps.windows(2) {
            // 0.58 of lightness over twenty steps, within the precision of eight bits per channel.
            assert!((pair[1] - pair[0] - 0.029).abs() < 0.004, "{steps:?}");
        }
    }
}
