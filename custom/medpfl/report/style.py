"""The look of the HTML report: one accent colour, light and dark, screen, phone and paper."""

_LIGHT = ("#1f5fa8", "#c2571a", "#2c7a4b", "#8a4fa3", "#96761a", "#b03a5b", "#32808c", "#6b6b6b", "#7a5230")
_DARK = ("#7ab3ef", "#f0945c", "#74c795", "#c79be0", "#dfc06a", "#ee86a4", "#83cbd5", "#b5b5b5", "#c79b76")


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{index}:{colour};" for index, colour in enumerate(colours))


_SERIES = "".join(
    f".c{index}{{stroke:var(--c{index})}}.f{index}{{fill:var(--c{index})}}svg .t{index}{{fill:var(--c{index})}}"
    for index in range(len(_LIGHT))
)

_LIGHT_COLOURS = (
    "--page:#fff;--ink:#1c1e21;--soft:#5c6167;--rule:#d9dce0;--accent:#1f5fa8;--down:#a33a1e;--own:#1c1e21;--deep:#fff;"
    + _palette(_LIGHT)
)
_DARK_COLOURS = (
    "--page:#15171a;--ink:#e6e8ea;--soft:#a0a6ad;--rule:#363b41;--accent:#7ab3ef;--down:#f0945c;--own:#e6e8ea;"
    "--deep:#0d1116;" + _palette(_DARK)
)

STYLE = (
    ":root{color-scheme:light dark;" + _LIGHT_COLOURS + "}\n"
    "@media (prefers-color-scheme:dark){:root{" + _DARK_COLOURS + "}}\n"
    """*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1136px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .25rem}
h2{font-size:1.2rem;margin:2.5rem 0 .75rem;padding-top:.75rem;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:1.75rem 0 .5rem}
p{margin:.5rem 0;max-width:72ch}
ul{margin:.5rem 0;padding-left:1.25rem;max-width:72ch}
.facts,.note{color:var(--soft);font-size:.875rem}
.lead{font-size:1.125rem;margin:1rem 0}
.problem{color:var(--down)}
.table,.figure{overflow-x:auto;margin:.5rem 0}
table{border-collapse:collapse;font-size:.8125rem;font-variant-numeric:tabular-nums}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:baseline;border-bottom:1px solid var(--rule)}
th:last-child,td:last-child{padding-right:2px}
th{font-weight:400}
td{overflow-wrap:anywhere}
tbody th,tfoot th{white-space:nowrap}
thead th{color:var(--soft);vertical-align:bottom;border-bottom-color:var(--soft)}
tfoot th,tfoot td{font-weight:600}
.n{text-align:right}
td.n{white-space:nowrap}
.down{color:var(--down)}
details{border-top:1px solid var(--rule);padding:.5rem 0}
summary{cursor:pointer;font-weight:600}
summary::marker{color:var(--accent)}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.pair{display:flex;flex-wrap:wrap;gap:8px 32px}
.seeds{display:flex;flex-wrap:wrap;gap:8px 40px}
.seeds>div{min-width:0}
.pair .figure{flex:1 1 440px;max-width:620px;min-width:0}
svg{display:block;width:100%;height:auto;font-size:12px;font-variant-numeric:tabular-nums}
svg text{fill:var(--ink)}
svg .tick,svg .axis{fill:var(--soft)}
svg .halo{paint-order:stroke;stroke:var(--page);stroke-width:4px;stroke-linejoin:round}
.grid{stroke:var(--rule);fill:none}
.curve{fill:none;stroke-width:2;stroke-linejoin:round}
.again{stroke-dasharray:2 3}
.band{fill:var(--accent);fill-opacity:.16}
.level{stroke:var(--ink);stroke-width:1.25;stroke-dasharray:6 4;fill:none}
.mark{stroke:var(--soft);stroke-dasharray:1 3;fill:none}
.site{fill:var(--accent);fill-opacity:.45}
.mean{stroke:var(--ink);stroke-width:2;fill:none}
.images{fill:var(--accent)}
.heat{fill:var(--accent)}
.diagonal{fill:none;stroke:var(--soft);stroke-width:1}
svg .own{fill:var(--own)}
svg .deep{fill:var(--deep)}
"""
    + _SERIES
    + """
@media (max-width:600px){main{padding:20px 16px 48px}h1{font-size:1.4rem}.lead{font-size:1.05rem}}
@media print{
:root{"""
    + _LIGHT_COLOURS
    + """}
main{max-width:none;padding:0}
body{font-size:11pt}
.table,.figure{overflow:visible}
.figure,tr{break-inside:avoid}
svg{print-color-adjust:exact;-webkit-print-color-adjust:exact;min-width:0!important}
h2,h3{break-after:avoid}
tfoot{display:table-row-group}
details::details-content{content-visibility:visible;display:block}
}
"""
)
