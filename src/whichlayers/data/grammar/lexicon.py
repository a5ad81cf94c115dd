"""The content words of the built-in grammar, by what they can do in a sentence.

`word` is regular. A noun with an odd plural is `child:children`. A verb with odd forms is `take:took:taken`;
a final * doubles the consonant (`hug*`: hugged, hugging). An adjective may name its adverb: `calm:calmly`.
Words in one bracket of `SYNONYMS` or `GENDERED` go together. Which words train and which test is decided in
words.py, so a word can stand in several classes and still be on one side.
"""

from __future__ import annotations

PEOPLE = """
teacher doctor nurse pilot farmer lawyer student baker singer dancer painter writer soldier sailor driver
gardener librarian guard judge banker butcher carpenter chef cook dentist detective diplomat engineer editor
journalist manager mechanic merchant miner musician officer poet professor reporter scientist secretary
sheriff surgeon tailor tourist architect artist author athlete accountant actor visitor neighbor guest
stranger senator priest cousin child:children hunter clerk coach captain plumber tutor scholar
"""

GENDERED = [  # he, she
    ("man:men", "woman:women"), ("boy", "girl"), ("king", "queen"), ("father", "mother"),
    ("brother", "sister"), ("uncle", "aunt"), ("prince", "princess"), ("son", "daughter"),
    ("husband", "wife:wives"), ("waiter", "waitress"), ("nephew", "niece"), ("monk", "nun"),
    ("duke", "duchess"), ("hero:heroes", "heroine"), ("gentleman:gentlemen", "lady"),
    ("grandfather", "grandmother"), ("salesman:salesmen", "saleswoman:saleswomen"), ("groom", "bride"),
]  # fmt: skip

MEN = """
John Peter David Michael Robert Thomas George Paul Mark James Daniel Andrew Simon Henry Edward Frank Martin
Oscar Richard Steven Patrick Brian Kevin Eric Adam Carl Victor Walter
"""
WOMEN = """
Mary Anna Susan Laura Emma Sarah Linda Helen Julia Alice Karen Nancy Rachel Lucy Diana Maria Claire Sophie
Margaret Barbara Jennifer Elizabeth Christine Rebecca Emily Martha Ruth Teresa
"""

ANIMALS = """
dog cat horse cow sheep:sheep goat lion tiger bear wolf:wolves fox rabbit monkey elephant eagle owl duck
pigeon snake frog camel donkey squirrel hawk
"""

OBJECTS = """
chair table lamp car boat bicycle book letter box bottle key knife:knives cup plate bag coat hat shoe ring
watch clock mirror picture painting guitar piano violin drum camera radio telephone computer door window
wall fence gate ladder hammer rope basket blanket pillow carpet umbrella engine envelope onion egg axe apple
orange arrow sword shield flag candle statue vase bench desk cabinet wagon truck tractor suitcase helmet
jacket shirt dress necklace bracelet coin stamp map notebook
"""

MASS = """
water milk rice sand sugar salt bread butter money music furniture equipment oil wine beer flour honey gold
silver mud dust smoke cheese advice information luggage rubbish homework traffic jewelry clothing steam
"""

PLACES = """
garden kitchen park market station school church bridge hotel museum library forest beach hospital office
castle village theater airport stadium factory farm cave harbor university garage temple monastery palace
barn cellar cottage square tavern chapel canal valley lake mill warehouse cathedral
"""

CITIES = """
Paris London Rome Berlin Madrid Boston Chicago Tokyo Vienna Dublin Moscow Cairo Sydney Toronto Athens Lisbon
Prague Milan Munich Seattle Denver Oslo Warsaw Budapest Mumbai Shanghai Dallas Istanbul
"""

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
MONTHS = "January February March April June July August September October November December"
HOURS = "noon midnight dawn dusk sunrise sunset lunchtime dinnertime nightfall"
YEARS = "1912 1925 1938 1947 1951 1966 1973 1984 1989 1995 2001 2008 2010 2014"
MOTIVES = """
curiosity fear pity anger boredom jealousy kindness loyalty greed gratitude pride spite desperation habit
necessity revenge frustration guilt
"""
TOOLS = """
brush broom spoon needle screwdriver crowbar shovel sponge towel cloth mop chisel wrench stick razor drill
fork pencil glove wire
"""

# The verb of a person acting on a person; none goes without its object.
TO_PEOPLE = """
admire visit thank help invite praise blame trust greet warn advise hire recognize respect support envy
ignore interview scold tease hug* rescue protect flatter amuse congratulate criticize encourage impress defend
forgive:forgave:forgiven betray mock contact punish confront comfort insult accompany appoint astonish
"""
# The verb of a person acting on a thing; none goes without its object.
TO_THINGS = """
carry lift damage destroy mention describe avoid discover examine borrow bring:brought find:found hold:held
store buy:bought lose:lost steal:stole:stolen take:took:taken throw:threw:thrown keep:kept use touch handle
remove grab* display inspect drop* select
"""
ALONE = """
sleep:slept smile sneeze cough arrive vanish disappear yawn snore pause emerge kneel:knelt faint blush
tremble shiver giggle weep:wept hesitate linger listen talk complain apologize behave frown sigh stumble
fall:fell:fallen laugh wait cry grin* die react
"""
# Two verbs that say the same and can be done with a tool, in a place, at a time.
SYNONYMS = [
    ("repair", "fix"), ("build:built", "construct"), ("shut*:shut", "close"), ("wreck", "ruin"),
    ("modify", "alter"), ("conceal", "hide:hid:hidden"), ("clean", "scrub*"), ("decorate", "adorn"),
    ("drag*", "pull"), ("sketch", "draw:drew:drawn"), ("examine", "inspect"),
    ("discover", "find:found"), ("buy:bought", "purchase"), ("select", "choose:chose:chosen"),
    ("lift", "raise"), ("toss", "throw:threw:thrown"), ("trade", "exchange"), ("mail", "send:sent"),
]  # fmt: skip

NEUTRAL = """
tall old young rich famous tired hungry busy lonely foreign local blind married British French German
popular former senior poor strange wealthy
"""
WITH_ADVERB = """
quiet:quietly careful:carefully nervous:nervously proud:proudly polite:politely slow:slowly quick:quickly
gentle:gently calm:calmly loud:loudly serious:seriously patient:patiently bitter:bitterly honest:honestly
eager:eagerly angry:angrily happy:happily silent:silently cheerful:cheerfully anxious:anxiously
brave:bravely cautious:cautiously discreet:discreetly graceful:gracefully rude:rudely
"""
OF_THINGS = """
heavy new dirty round empty expensive narrow square broken plain thick thin light rare precious antique
"""
SIZES = "big small large tiny huge enormous medium little giant"
COLORS = """
red green blue yellow purple brown gray black white pink scarlet violet golden crimson turquoise
"""
MATERIALS = """
wooden metal plastic glass leather brass bronze stone copper cotton paper steel iron bamboo clay
"""
ORIGINS = """
Italian Spanish Russian Chinese Japanese Swedish Dutch Polish Turkish Indian Mexican Greek Danish Egyptian
"""

# What is judged, and what about it is judged.
REVIEWED = {
    "film": "plot acting script ending dialogue cast",
    "movie": "story photography soundtrack pace climax trailer",
    "novel": "prose style opening narrator theme chapter",
    "biography": "tone preface writing research",
    "restaurant": "food service menu dessert staff",
    "cafe": "coffee breakfast decor seating",
    "hotel": "room pool lobby bathroom",
    "resort": "spa view terrace sauna",
    "album": "melody voice lyric rhythm",
    "concert": "sound lighting orchestra audience",
    "play": "stage costume performance direction",
    "musical": "choreography finale singing scenery",
    "game": "animation design control puzzle",
    "phone": "screen battery keyboard display",
    "lecture": "topic delivery structure conclusion",
    "trip": "guide itinerary weather hostel",
}
GOOD = """
wonderful brilliant superb excellent delightful charming lovely great fantastic amazing beautiful terrific
impressive enjoyable fascinating inspired pleasant perfect splendid gorgeous elegant memorable remarkable
exciting refreshing magnificent stunning entertaining thrilling witty outstanding exceptional glorious
marvelous good engaging compelling moving
"""
BAD = """
awful terrible dull boring dreadful horrible disappointing mediocre tedious bland weak lame pathetic ugly
annoying unpleasant messy stupid clumsy pointless ridiculous miserable stale forgettable sloppy shallow
painful disgusting nasty hideous dismal appalling grim lifeless predictable lousy bad useless
"""
GOOD_NOUNS = "triumph delight masterpiece gem joy success pleasure treat treasure marvel bargain wonder"
BAD_NOUNS = """
disaster mess failure disgrace bore waste nightmare fiasco disappointment mistake insult scandal
"""
LIKING = "love enjoy adore like recommend appreciate cherish applaud favor value"
DISLIKING = "hate dislike regret loathe despise detest resent condemn deplore denounce"

# A word for a kind and things of that kind; `:mass` and `:name` go without an article.
KINDS = {
    "fruit": "pear lemon peach cherry banana grape melon plum",
    "animal": "tiger elephant rabbit camel donkey zebra leopard kangaroo",
    "insect": "ant bee beetle butterfly mosquito spider wasp moth",
    "instrument": "trumpet flute violin piano trombone cello harp clarinet",
    "vehicle": "truck tractor motorcycle van bus taxi jeep tram",
    "bird": "parrot swan falcon crow robin sparrow penguin ostrich",
    "weapon": "sword rifle pistol dagger spear cannon bow grenade",
    "city:name": "Naples Glasgow Houston Geneva Bangkok Hamburg Detroit Beijing",
    "country:name": "France Brazil Sweden Kenya Poland Canada Peru Vietnam",
    "garment": "skirt sweater scarf blouse vest robe kimono cardigan",
    "building": "mosque skyscraper prison bakery barracks:barracks greenhouse lighthouse pub",
    "metal:mass": "copper zinc tin lead aluminum nickel platinum iron",
    "drink:mass": "tea coffee whiskey rum lemonade vodka juice gin",
    "sport:mass": "tennis football hockey basketball golf rugby cricket volleyball",
    "language:name": "Latin Arabic Hebrew Hindi Finnish Korean Welsh Persian",
    "disease:mass": "malaria cancer pneumonia diabetes tuberculosis influenza leukemia asthma",
    "vegetable": "carrot potato:potatoes cabbage cucumber pumpkin tomato:tomatoes turnip radish",
    "tree": "oak pine willow maple birch elm cedar palm",
    "flower": "rose lily tulip daisy orchid violet sunflower poppy",
    "planet:name": "Mars Jupiter Venus Saturn Mercury Neptune Uranus Pluto",
    "profession": "cobbler barber locksmith florist geologist optician astronomer weaver",
    "dance": "waltz tango polka ballet samba foxtrot",
    "organ": "kidney liver heart lung stomach brain bladder spleen",
    "science:mass": "physics chemistry biology geology astronomy botany zoology psychology",
    "religion:name": "Islam Buddhism Christianity Judaism Hinduism Catholicism",
    "fabric:mass": "silk wool linen velvet denim cotton lace nylon",
    "dish": "pizza omelette salad sandwich stew pie burger curry",
    "relative": "stepmother grandson stepfather granddaughter twin godfather",
    "emotion:mass": "grief sadness joy anger envy disgust shame jealousy",
    "toy": "doll puppet kite marble balloon rattle",
}
ABOUT = """
mention describe discuss choose:chose:chosen study remember see:saw:seen prefer* draw:drew:drawn
like forget*:forgot:forgotten name suggest know:knew:known recall imagine list identify
"""
