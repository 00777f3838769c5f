"""What the storyteller is asked: requests for tales and short chats, drawn from word lists."""

import random


def listed(words: str) -> list[str]:
    """Words between bars."""
    return words.split("|")


NAMES = listed(
    "Mia|Tom|Lily|Ben|Anna|Max|Rosa|Sam|Nina|Leo|Ella|Jack|Zoe|Finn|Ruby|Noah|Ivy|Oscar|Clara|Hugo|"
    "Emma|Felix|Grace|Theo|Alice|Milo|Daisy|Ravi|Yuki|Amir|Lena|Pablo|Kofi|Sana|Olga|Bruno"
)
BEINGS = listed(
    "fox|little bear|old turtle|grey mouse|young owl|brave cat|shy rabbit|small dragon|"
    "lost duckling|clever crow|sleepy dog|tiny frog|wise goat|hungry hedgehog|kind giant|"
    "toy robot|busy bee|quiet snail|proud rooster|snow horse|baker|fisherman|gardener|clockmaker|"
    "lighthouse keeper|farmer|painter|postman|shepherd|sailor"
)
PLACES = listed(
    "forest|village|lighthouse|garden|farm|island|mountain|river|library|market|bakery|castle|"
    "school|meadow|harbour|cave|beach|windmill|train station|snowy valley|big city|quiet lake|"
    "treehouse|museum|desert"
)
THINGS = listed(
    "bell|lantern|red kite|map|blue button|music box|golden key|boat|umbrella|book|pair of boots|"
    "clock|seed|drum|basket of apples|letter|telescope|cake|warm blanket|paper bird|coin|mirror|"
    "wooden spoon|star|balloon|shell|hat|bicycle|pot of honey|puppet"
)
MOODS = listed("happy|sad|funny|gentle|exciting|calm|strange|cosy|brave|surprising")
TIMES = listed(
    "one rainy day|in winter|at night|on a windy morning|in spring|after school|long ago"
)
DEEDS = listed(
    "loses a {thing}|finds a {thing}|learns to share|makes a new friend|gets lost in the {place}|"
    "helps a stranger|is afraid of the dark|builds a {thing}|breaks a {thing} and tells the truth|"
    "wants to see the sea|plants a seed|hears a strange noise|learns to say sorry|"
    "waits for a friend|looks for a missing {thing}|wins a race|learns to be patient|"
    "gives away a {thing}|has a bad dream|tries again after failing"
)

TALES = (
    "Tell me a story about a {being} who {deed}.",
    "Tell me a {mood} story about a {being} named {name} who {deed}.",
    "Write a short story about {name} and a {being} in the {place}.",
    "Write a {mood} story for children. {name} {deed} {time}.",
    "Tell a story that begins in a {place}. {name} the {being} {deed}.",
    "Once upon a time there was a {being} who {deed}. What happened?",
    "Write a story about two friends, {name} and {other}, and a {thing}.",
    "Tell me a bedtime story about a {being}, a {thing} and the {place}.",
    "Write a story with a {mood} ending. A {being} {deed} {time}.",
    "Tell me about {name}, who lives near the {place} and {deed}.",
)
CHATS = (
    "What is a {thing}?",
    "What can you see in a {place}?",
    "Describe a {place} {time} in three sentences.",
    "Describe a {being} in two sentences.",
    "My name is {name}. Say hello to me.",
    "I feel {mood} today. What should I do?",
    "I lost my {thing}. Can you help me?",
    "What would a {being} say to {name}?",
    "Write two sentences about a {thing} and a {being}.",
    "Why does a {being} need a {thing}?",
    "How do I make a {thing}? Answer in a few sentences.",
    "Give {name} some kind advice in one sentence.",
    "What is the best thing about the {place}?",
    "{name} and {other} had a fight. How can they be friends again?",
)
TELLER = "You tell short stories to young children. You use simple words and short sentences."
TALKER = "You talk with young children. You answer in a few short and simple sentences."


def ask(kind: tuple[str, ...], draw: random.Random) -> str:
    """One request, made from a form of `kind` (TALES or CHATS)."""
    words = {"thing": draw.choice(THINGS), "place": draw.choice(PLACES)}
    name, other = draw.sample(NAMES, 2)
    words |= {"name": name, "other": other, "being": draw.choice(BEINGS)}
    words |= {"mood": draw.choice(MOODS), "time": draw.choice(TIMES)}
    words["deed"] = draw.choice(DEEDS).format(**words)
    return with_articles(draw.choice(kind).format(**words))


def with_articles(text: str) -> str:
    """`a old turtle` as `an old turtle`."""
    words = text.split(" ")
    for at, word in enumerate(words[:-1]):
        if word in ("a", "A") and words[at + 1][0] in "aeiou":
            words[at] = word + "n"
    return " ".join(words)
