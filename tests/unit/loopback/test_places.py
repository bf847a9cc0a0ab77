from moriio_observed.loopback.places import Place, PlaceCounter


def post(counter: PlaceCounter, *layers: int) -> list[Place]:
    places = []
    for layer in layers:
        places.append(counter.place(layer))
        counter.accepted(places[-1])
    return places


def test_layers_that_go_up_are_one_request():
    assert post(PlaceCounter(), 0, 1, 2) == [Place(0, 0), Place(0, 1), Place(0, 2)]


def test_a_layer_that_goes_back_begins_the_next_request():
    assert [place.request for place in post(PlaceCounter(), 0, 1, 0, 1)] == [0, 0, 1, 1]


def test_the_same_layer_again_begins_the_next_request():
    assert [place.request for place in post(PlaceCounter(), 0, 0, 0)] == [0, 1, 2]


def test_a_request_need_not_begin_with_layer_0():
    assert [place.request for place in post(PlaceCounter(), 2, 3, 1, 2)] == [0, 0, 1, 1]


def test_a_rejected_post_is_the_same_place_at_its_next_attempt():
    counter = PlaceCounter()
    post(counter, 0, 1)
    for attempt in range(3):
        place = counter.place(0)
        assert place == Place(1, 0, attempt)
        counter.rejected(place)
    assert post(counter, 0, 1) == [Place(1, 0, 3), Place(1, 1)]


def test_a_post_given_up_leaves_the_request_where_it_was():
    counter = PlaceCounter()
    post(counter, 0)
    counter.rejected(counter.place(1))
    assert post(counter, 2, 0) == [Place(0, 2), Place(1, 0)]


def test_after_a_reset_the_next_request_is_number_0():
    counter = PlaceCounter()
    post(counter, 0, 1, 0, 1)
    counter.reset()
    assert [place.request for place in post(counter, 0, 1, 0)] == [0, 0, 1]


def test_a_request_under_way_at_a_reset_stays_out_of_the_count():
    counter = PlaceCounter()
    post(counter, 0, 1)
    counter.reset()
    assert [place.request for place in post(counter, 2, 3, 0)] == [-1, -1, 0]
