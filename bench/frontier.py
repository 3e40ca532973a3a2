"""A plot of what a steady neighbour pays for what a burst gets: nobody buys the one with the other unseen."""

import math

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 30, 60
COLORS = ["#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#9c6b4e"]
TICKS = [1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200]


def draw(points, bound):
    """The text of an SVG file. `points`: (group, label, burst of what it gets without a limit, p99 over p99 alone); those of
    a group are joined. `bound`: what is asked for, the least of the first and the most of the second."""
    most_x = max([1.05, *(x for _, _, x, _ in points)])
    most_y = max([bound[1] * 1.5, *(y for _, _, _, y in points)]) * 1.15

    def at(x, y):
        across = LEFT + x / most_x * (WIDTH - LEFT - RIGHT)
        up = math.log(max(y, 0.8) / 0.8) / math.log(most_y / 0.8)
        return across, HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
             'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    (left, low), (right, high) = at(bound[0], 0.8), at(most_x, bound[1])
    parts.append(f'<rect x="{left:.0f}" y="{high:.0f}" width="{right - left:.0f}" height="{low - high:.0f}" '
                 'fill="#e3f4e3"/>')
    for x in [tick / 4 for tick in range(int(most_x * 4) + 1)]:
        across, _ = at(x, 1)
        parts.append(f'<line x1="{across:.0f}" y1="{TOP}" x2="{across:.0f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>'
                     f'<text x="{across:.0f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>')
    for y in [tick for tick in TICKS if tick <= most_y]:
        _, up = at(0, y)
        parts.append(f'<line x1="{LEFT}" y1="{up:.0f}" x2="{WIDTH - RIGHT}" y2="{up:.0f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 8}" y="{up + 4:.0f}" text-anchor="end">{y:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 15}" text-anchor="middle">'
                 'what the burst gets, of what it gets from a store without a throttle</text>'
                 f'<text transform="translate(18 {HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">'
                 "the steady volume's p99 / alone</text>")
    for number, group in enumerate(dict.fromkeys(group for group, *_ in points)):
        color = COLORS[number % len(COLORS)]
        mine = sorted((x, y, label) for of, label, x, y in points if of == group)
        places = [at(x, y) for x, y, _ in mine]
        line = " ".join(f"{across:.1f},{up:.1f}" for across, up in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}"/>')
        for (across, up), (_, _, label) in zip(places, mine):
            parts.append(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="4" fill="{color}"><title>{label}</title></circle>')
        height = TOP + 10 + number * 20
        parts.append(f'<circle cx="{WIDTH - RIGHT + 20}" cy="{height - 4}" r="4" fill="{color}"/>'
                     f'<text x="{WIDTH - RIGHT + 30}" y="{height}">{group}</text>')
    return "\n".join([*parts, "</svg>", ""])
